"""Work in floating-point operations: the products of a block one by one, attention, the VAE, the text encoder.

Shapes of a product: [rows, inner] times [inner, outer].
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.config import BrookTextConfig, DiTConfig, TextConfig
from millstream.planner.memory import text_parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    rows: int
    inner: int
    outer: int
    count: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.outer * self.count

    @property
    def weights(self) -> int:
        return self.inner * self.outer * self.count


def block_products(dit: DiTConfig, tokens: int, *, tp: int = 1) -> list[Product]:
    """One rank's share: q, k, v and the MLP's first are split by columns, o and the MLP's second by rows. Cross-attention's are
    whole on every rank."""
    narrow, hidden = dit.width // tp, dit.ffn // tp
    return [
        Product(rows=tokens, inner=dit.width, outer=narrow, count=3),
        Product(rows=tokens, inner=narrow, outer=dit.width),
        Product(rows=tokens, inner=dit.width, outer=dit.width, count=2),
        Product(rows=tokens, inner=dit.width, outer=hidden),
        Product(rows=tokens, inner=hidden, outer=dit.width),
    ]


def attention_flops(queries: int, keys: int, width: int) -> int:
    """Scores and their weighted sum."""
    return 4 * queries * keys * width


def call_flops(dit: DiTConfig, tokens: int, window_tokens: int) -> int:
    """The blocks of one model call; embeddings and head are below a thousandth of it."""
    products = sum(product.flops for product in block_products(dit, tokens))
    attention = attention_flops(tokens, window_tokens, dit.width) + attention_flops(tokens, dit.text_tokens, dit.width)
    return dit.layers * (products + attention)


def text_flops(text: TextConfig | BrookTextConfig, tokens: int) -> int:
    """Two per parameter and token, the vocabulary aside: a lookup costs nothing."""
    return 2 * (text_parameters(text) - text.vocabulary * text.width) * tokens
