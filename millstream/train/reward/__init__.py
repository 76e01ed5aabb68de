"""Rewards that a model can be tuned by: built-in ones, Python functions and HTTP services."""
