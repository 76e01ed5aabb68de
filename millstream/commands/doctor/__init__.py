"""Checks of `millstream doctor`."""
