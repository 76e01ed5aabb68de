"""Tests of millstream/fleet/."""
