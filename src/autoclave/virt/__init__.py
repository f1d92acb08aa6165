"""Run guests: their disks, their domain XML, and the hypervisor drivers."""
