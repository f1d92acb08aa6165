"""The operator's own API, under ``/autoclave/v1``: what no Cyborg client knows."""
