"""Lab 03: weights, gradients and optimiser in parts, with torch's FSDP."""
