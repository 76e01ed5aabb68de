"""Tests of millstream/train/."""
