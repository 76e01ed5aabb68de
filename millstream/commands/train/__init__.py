"""What `millstream train` runs."""
