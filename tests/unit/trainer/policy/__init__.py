"""Tests of millstream/trainer/policy/."""
