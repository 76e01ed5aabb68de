"""Files that PyTorch dumps beside traces, its memory snapshots first. No torch, and no code of a dump is
run."""
