"""Chapter 7: layers one after the other on several ranks, and how to keep all of them busy."""
