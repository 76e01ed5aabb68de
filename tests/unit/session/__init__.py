"""Tests of millstream/session/."""
