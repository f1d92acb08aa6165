"""The HTTP service: a stateless WSGI application. It reads the database, and asks conductors and agents to act."""
