"""What `millstream plan` answers."""
