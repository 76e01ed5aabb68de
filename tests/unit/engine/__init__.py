"""Tests of millstream/engine/."""
