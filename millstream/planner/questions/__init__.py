"""Questions that take more than one search: which of several cards, and what would make a promise hold."""
