"""Video chapter 3: from many steps to few, from a teacher to self-forcing, and why streams drift."""
