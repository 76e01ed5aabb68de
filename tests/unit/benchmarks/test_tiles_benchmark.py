"""The benchmark of tiles in miniature: a tile alone does and sends what it would among others, and predictions add it up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import shares, tiles
from benchmarks.tiles import LoneTile, measure
from millstream.models.wan.fast_vae import FastVAE
from millstream.parallel.spatial import SplitVAE
from millstream.parallel.tiles import Tile, choose_grid
from millstream.planner.hardware import PCIE5, find_device
from tests.unit.models_for_tests import vae

CPU = torch.device("cpu")


@torch.inference_mode()
def test_a_tile_alone_sends_what_it_sends_among_others_and_no_tile_sends_more(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, latents = FastVAE(vae()), torch.randn(1, 2, 4, 4, 8)
    grid = choose_grid((4, 8), 8)
    lone = LoneTile(grid)
    FastVAE(whole, None, lone).decode(grid.cut(latents, unit=1)[lone.place])
    sent = [Counter[tuple[str, int]]() for _ in range(8)]
    give = Tile._give

    def counted(tile: Tile, place: int | None, pixels: Tensor) -> None:
        if place is not None:
            sent[tile.place]["edge", pixels.nbytes] += 1
        give(tile, place, pixels)

    monkeypatch.setattr(Tile, "_give", counted)
    SplitVAE(whole, [CPU] * 8).decode(latents)
    assert lone.sent == sent[lone.place]
    assert lone.sent.total() == max(each.total() for each in sent) > 0


@torch.inference_mode()
def test_whole_and_tiles_are_measured_with_what_they_send(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TURNS": 1, "TURN": 1, "SMALL": 1, "TILES": (4,)}.items():
        monkeypatch.setattr(tiles, name, value)
    found = dict(measure(FastVAE(vae()), torch.randn(1, 1, 4, 4, 8)))
    assert [each["grid"] for each in found.values()] == ["1x1", "2x2"]
    assert all(each["ms"] > 0 and each["host_ms"] > 0 for each in found.values())
    pictures = [[one for one in each["sent"] if one["kind"] == "picture"] for each in found.values()]
    assert pictures == [[], [{"kind": "picture", "bytes": 4 * 3 * 16 * 32 * 4, "times": 3}]]


def pictures(ms: dict[int, float], host_ms: float) -> dict[int, dict[str, Any]]:
    sent = [{"kind": "edge", "bytes": 1_000_000, "times": 50}]
    return {count: {"ms": each, "host_ms": host_ms, "sent": sent if count > 1 else []} for count, each in ms.items()}


def test_a_prediction_is_calls_and_what_is_sent_and_pictures_or_the_host_where_that_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, h200, share = shares.CASES["1.3b-bf16"], find_device("H200"), {"share_ms": 100.0, "sent": []}

    def ms(tiles: int, host_ms: float = 10.0, link: Any = h200.link) -> float:
        monkeypatch.setattr(shares, "pictures_of", lambda _: pictures({1: 60.0, 2: 30.0}, host_ms))
        return 12e3 / shares.predict(case, "tp2", share, h200, link, tiles=tiles)

    edges = [50 * (link.alpha_us / 1e3 + 1 / link.beta_gb_s) for link in (h200.link, PCIE5)]
    assert ms(1) - ms(2) == pytest.approx(30 - edges[0])
    assert ms(2, link=PCIE5) - ms(2) == pytest.approx(edges[1] - edges[0])
    assert ms(2, host_ms=500.0) == pytest.approx(500.0)


def test_the_better_of_one_card_and_tiles_says_where_more_cards_stop_paying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "pictures_of", lambda _: pictures({1: 100.0, 2: 50.0, 4: 25.0}, 1.0))
    found = {f"sp{n}": {"share_ms": 100.0 / n, "whole_ms": 100.0, "sent": []} for n in (2, 4)}
    device = find_device("H200")
    best = shares.best_of(shares.CASES["1.3b-bf16"], found, device, device.link)
    assert list(best) == [1, 2, 4]
    assert all(more.in_tiles > fewer.in_tiles for fewer, more in pairwise(best.values()))
    assert all(each.fps == each.in_tiles[0] >= each.on_one[0] for each in best.values())
    assert str(best[4]).endswith("(sp4)")
