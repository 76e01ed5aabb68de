"""A fleet on Ray as its people meet it: `python -m benchmarks.fleet` measures, these are its parts."""
