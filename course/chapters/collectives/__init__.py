"""Chapter 3: operations that all ranks of a group take part in."""
