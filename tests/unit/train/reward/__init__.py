"""Tests of millstream/train/reward/."""
