"""Chapter 13: actor, critic, reward and reference, on the tiny language model and on Brook."""
