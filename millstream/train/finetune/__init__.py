"""Training a model that exists on clips that people have, on one device or many."""
