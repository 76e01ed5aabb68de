"""Capture and reading of traces for `millstream profile`."""
