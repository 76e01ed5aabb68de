"""Tests of what benchmarks compute, of the results they left, and of the pages that quote them."""
