"""Chapter 9: what a model remembers, what that takes, and who may share it."""
