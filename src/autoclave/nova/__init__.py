"""Nova, as far as it is told of binds."""
