"""Few-step students of any causal model, on any number of ranks: their methods, and the roles these take."""
