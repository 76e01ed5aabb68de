"""Parts of `benchmarks.tune`: rows that are kept, files that travel between machines, and fork times."""
