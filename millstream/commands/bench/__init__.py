"""What `millstream bench` measures."""
