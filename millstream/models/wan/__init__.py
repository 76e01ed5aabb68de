"""What is Wan's own: its VAE, its text encoder, and the names its checkpoints use."""
