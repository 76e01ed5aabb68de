"""Tests of millstream/load/."""
