"""Tests of millstream/trainer/reward/."""
