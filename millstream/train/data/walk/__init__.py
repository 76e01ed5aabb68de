"""A world to walk in."""
