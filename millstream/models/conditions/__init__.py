"""Injectors: what steers a model besides words, made into entries of its DiT from outside."""
