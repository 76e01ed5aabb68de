"""What `millstream profile` captures and reads."""
