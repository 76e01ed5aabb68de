"""Code for Wan alone: its VAE, its text encoder, and the names its checkpoints use."""
