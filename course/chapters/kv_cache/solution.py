"""Chapter 9, solution."""

from __future__ import annotations


def kv_bytes(layers: int, kv_heads: int, head_width: int, tokens: int, value_bytes: int) -> int:
    return 2 * layers * kv_heads * head_width * tokens * value_bytes


def pages_in_use(past: int, branches: int, written: int, page_tokens: int) -> int:
    def pages(tokens: int) -> int:
        return -(-tokens // page_tokens)

    own = pages(past + written) - past // page_tokens  # a page that is half full is copied
    return pages(past) + branches * own
