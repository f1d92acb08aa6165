"""The port to the database: tables, one module of statements a noun, and the engine."""
