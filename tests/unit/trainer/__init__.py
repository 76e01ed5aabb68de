"""Tests of millstream/trainer/."""
