"""Tests of millstream/models/."""
