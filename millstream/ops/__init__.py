"""Operators, one signature each: attention, rotary phases, norms, noise. They know tensors, not models."""
