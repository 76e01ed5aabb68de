"""Attention in even waves. A GPU works on one tile a processor at a time: so many queries of one head,
over all keys. Tiles that do not fill a last wave leave most of the card idle for as long as a full one takes:
4680 queries of 12 heads are 3.4 waves of an H200, and cost 4.

So the queries of whole waves attend as ever, and the rest apart, to several parts of the keys at once: more
tiles, and shorter ones. Answers to parts of the keys are put together by their sums of exponentials, exactly.
Shapes: B batch, L queries, W keys, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

QUERIES = 128
KEYS = 128
"""Queries and keys of a tile of cuDNN's attention on Hopper: what a processor holds, and what it reads at a
time."""
_BEGINNING = 2
"""Cost of a tile besides its keys, in multiples of the cost of `KEYS` keys."""
_CALL = 6
"""Cost of a second call and of putting its answers together, in the same unit."""
_MOST_PARTS = 16
CAPABILITY = (9, 0)
HEAD_WIDTH = 128
"""Width of the heads that this was measured with. Other cards and other heads have other tiles."""


@dataclass(frozen=True, slots=True)
class Waves:
    queries: int
    """Queries that attend to all keys at once; the rest attend to parts of them."""
    parts: int


@lru_cache(maxsize=256)
def even_waves(queries: int, keys: int, heads: int, processors: int) -> Waves | None:
    """Return the quickest split by counting; None if that is one call. `keys` in parts are whole tiles."""
    tiles = -(-queries // QUERIES)
    length = keys // KEYS
    if keys % KEYS:
        return None

    def waves(count: int) -> int:
        return -(-count * heads // processors)

    def time(whole: int, parts: int) -> int:
        return waves(whole) * length + waves((tiles - whole) * parts) * (length // parts + _BEGINNING) + _CALL

    possible = [parts for parts in range(2, min(_MOST_PARTS, length) + 1) if length % parts == 0]
    ways = [(time(whole, parts), parts, whole) for parts in possible for whole in range(1, tiles)]
    quickest = min(ways, default=None)
    if quickest is None or quickest[0] >= waves(tiles) * length:
        return None
    _, parts, whole = quickest
    return Waves(whole * QUERIES, parts)


def waves_of(q_BLNH: Tensor, k_BWNH: Tensor) -> Waves | None:
    """Return the waves of a single row's queries over these keys, on their device; None if one call is
    quickest, or if the device or the heads are others than measured."""
    batch, queries, heads, head_width = q_BLNH.shape
    if not q_BLNH.is_cuda or batch > 1 or head_width != HEAD_WIDTH:
        return None
    card = torch.cuda.get_device_properties(q_BLNH.device)
    if (card.major, card.minor) != CAPABILITY:
        return None
    return even_waves(queries, k_BWNH.shape[1], heads, card.multi_processor_count)
