"""One folder a chapter: its page, its scripts, its exercises. They call torch's collectives bare, because
they teach them."""
