"""What is told in the guest, one story a file."""
