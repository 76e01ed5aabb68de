"""Tests of millstream/wire/."""
