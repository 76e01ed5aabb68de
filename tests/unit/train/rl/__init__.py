"""Tests of millstream/train/rl/."""
