"""Rates that cards reach: by architecture, and for a card of one's own from a file."""
