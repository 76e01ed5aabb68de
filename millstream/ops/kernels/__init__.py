"""Hand-written Triton kernels. Each has a plain twin in `ops/` with the same signature, which is its
reference.

Only imported where Triton is there and tensors are on a GPU; `ops/backend.py` decides.
"""
