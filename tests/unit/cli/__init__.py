"""Tests of millstream/cli/."""
