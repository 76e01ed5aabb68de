"""Tests of millstream/commands/."""
