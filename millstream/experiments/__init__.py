"""Ways to run that no committed result supports yet: behind `--experimental` alone, and listed in
docs/decisions/002."""
