"""Tests of millstream/mesh/."""
