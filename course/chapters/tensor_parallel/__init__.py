"""Chapter 6: one layer on several ranks."""
