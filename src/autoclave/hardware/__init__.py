"""The port to the host: sysfs, disks, and the tools that talk to drives."""
