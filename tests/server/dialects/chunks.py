"""How long the chunks of these streams are."""

from __future__ import annotations

FPS = 48.0
"""A chunk plays three quarters of a second: a busy machine can promise that."""
FIRST = 9
LATER = 12
"""Frames of a stream's first chunk and of all others."""
