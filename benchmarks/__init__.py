"""One command per claim; results lie beside it."""
