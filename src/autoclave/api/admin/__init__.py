"""Serve the operator's API under ``/autoclave/v1``, for all that Cyborg's API lacks."""
