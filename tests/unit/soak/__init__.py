"""Tests of what soak programs compute."""
