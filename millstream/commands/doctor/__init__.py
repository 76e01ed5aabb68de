"""What `millstream doctor` looks at."""
