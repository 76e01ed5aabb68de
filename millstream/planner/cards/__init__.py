"""What cards reach: by architecture, and a card of one's own from a file."""
