"""Pieces of schemas that several nouns use."""

UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$(?!\n)"
"""A uuid. The look-ahead is for Python, where ``$`` also stands before a line feed at the end."""

UUID = {"type": "string", "pattern": UUID_PATTERN, "x-message": "must be a uuid"}
