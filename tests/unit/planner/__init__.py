"""Tests of millstream/planner/."""
