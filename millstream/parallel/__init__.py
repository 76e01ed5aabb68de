"""How one model is spread over several ranks: wraps models from outside, so that they never see a rank."""
