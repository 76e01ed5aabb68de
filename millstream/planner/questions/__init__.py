"""Questions that take more than one search: which of several cards, what would make a promise hold, and which
role of a tuning goes where."""
