"""Tests of millstream/generation/."""
