"""What `benchmarks.tune` is made of: rows that are kept, what travels between machines, and how long forks take."""
