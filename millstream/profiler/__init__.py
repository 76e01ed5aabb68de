"""Bottleneck of a run: traces are read, taken apart and judged. Does not import torch."""
