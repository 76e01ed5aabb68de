"""A loaded model, taken over by quicker code that computes the same function. The plain models know nothing
of it."""
