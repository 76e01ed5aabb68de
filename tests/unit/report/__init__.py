"""Tests of millstream/report/."""
