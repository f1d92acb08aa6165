"""Define device drivers, loaded by entry point from ``[agent] enabled_drivers``."""
