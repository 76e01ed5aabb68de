"""Tests of millstream/core/."""
