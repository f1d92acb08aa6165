"""Device drivers, loaded by entry point from ``[agent] enabled_drivers``."""
