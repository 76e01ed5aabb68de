"""Training runs of `millstream train`."""
