"""Serve the HTTP APIs as a stateless WSGI application.

Requests read the database. Changes are sent to conductors and agents.
"""
