"""Tests of millstream/ops/."""
