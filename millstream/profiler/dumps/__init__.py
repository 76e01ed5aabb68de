"""What PyTorch dumps beside traces: memory, and the last collectives. No torch, and no code of a dump is run."""
