"""Measurements of `millstream bench`."""
