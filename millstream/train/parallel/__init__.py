"""Training on many ranks: how gradients, weights and activations are shared out, applied to a model from
outside."""
