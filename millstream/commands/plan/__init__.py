"""Answers of `millstream plan`."""
