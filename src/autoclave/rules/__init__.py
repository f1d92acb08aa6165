"""Make pure decisions: no I/O, no oslo, no clock."""
