"""Run the instances of a host: its providers, its PCI functions, its guests."""
