"""`millstream fleet`: what its commands do."""
