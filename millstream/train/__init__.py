"""Training of the small model that comes with Millstream: the world it learns, and how it learns it."""
