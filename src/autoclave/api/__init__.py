"""The HTTP service: a stateless WSGI application. It reads the database, and asks conductors and agents to act.

JSON schemas of request bodies, one module a noun, compiled once.
"""
