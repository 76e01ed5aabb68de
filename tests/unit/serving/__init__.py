"""Tests of millstream/serving/."""
