"""Chapter 5: copies of a model that see different rows and learn as one."""
