"""Chapter 4: what a message costs."""
