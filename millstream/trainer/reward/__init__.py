"""What a stream is worth: rewards that a model can be tuned by, ours and other people's."""
