"""The commands: each one's options, which are a dataclass, and what it does."""
