"""Video chapter 4: what a chunk of work is, where it travels, and what happens at the same time."""
