"""Chapter 9, exercises. Fill in the functions, then run `millstream course check 9`."""

from __future__ import annotations


def kv_bytes(layers: int, kv_heads: int, head_width: int, tokens: int, value_bytes: int) -> int:
    """Return the bytes of one text's keys and values."""
    raise NotImplementedError("kv_bytes")


def pages_in_use(past: int, branches: int, written: int, page_tokens: int) -> int:
    """Return the pages of all branches together and of the text that they come from, which stays.

    A text of `past` tokens was forked `branches` times, and each branch wrote `written` tokens of its own, 1
    or more. Pages are shared where they can be.
    """
    raise NotImplementedError("pages_in_use")
