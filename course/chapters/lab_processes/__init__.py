"""Lab 01: the same model on several processes, each with its part of the rows."""
