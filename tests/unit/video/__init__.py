"""Tests of millstream/video/."""
