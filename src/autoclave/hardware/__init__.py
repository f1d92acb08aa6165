"""Access the host: sysfs, disks, and the tools that control drives."""
