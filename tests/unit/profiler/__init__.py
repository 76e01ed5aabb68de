"""Tests of millstream/profiler/."""
