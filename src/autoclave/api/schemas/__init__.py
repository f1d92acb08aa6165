"""JSON schemas of request bodies, one module a noun, compiled once."""
