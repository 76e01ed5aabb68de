"""Optimisers: they turn gradients into weights, whatever part of the weights a rank holds."""
