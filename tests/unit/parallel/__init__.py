"""Tests of millstream/parallel/."""
