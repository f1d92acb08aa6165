"""Define the tables and the engine, with one module of statements for each kind of record."""
