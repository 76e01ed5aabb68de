"""The benchmark of tiles in miniature: a tile alone does and sends what it would among others, and
predictions add it up."""

from __future__ import annotations

import json
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import distributed_page, pages, shares, tiles
from benchmarks.checks.small_models import vae
from benchmarks.decoder import recorded
from benchmarks.pages import write_tables
from benchmarks.report import RESULTS
from benchmarks.tiles import LoneTile, measure
from millstream.models.wan.fast_vae import FastVAE
from millstream.parallel.spatial import SplitVAE
from millstream.parallel.tiles import Tile, choose_grid
from millstream.planner.hardware import PCIE5, find_device

CPU = torch.device("cpu")


@torch.inference_mode()
def test_a_tile_alone_sends_what_it_sends_among_others_and_no_tile_sends_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = FastVAE(vae())
    latents = torch.randn(1, 2, 4, 4, 8)
    grid = choose_grid((4, 8), 8)
    lone = LoneTile(grid)
    FastVAE(whole, None, lone).decode(grid.cut(latents, unit=1)[lone.place])
    sent = [Counter[tuple[str, int]]() for _ in range(8)]
    give = Tile._send

    def counted(tile: Tile, place: int | None, pixels: Tensor) -> None:
        if place is not None:
            sent[tile.place]["edge", pixels.nbytes] += 1
        give(tile, place, pixels)

    monkeypatch.setattr(Tile, "_send", counted)
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
    return {
        count: {"ms": each, "host_ms": host_ms, "sent": sent if count > 1 else []}
        for count, each in ms.items()
    }


def test_a_prediction_is_calls_and_what_is_sent_and_pictures_or_the_host_where_that_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = shares.CASES["1.3b-bf16"]
    h200 = find_device("H200")
    share = {"share_ms": 100.0, "sent": []}

    def ms(tiles: int, host_ms: float = 10.0, link: Any = h200.link) -> float:
        monkeypatch.setattr(shares, "pictures_of", lambda _: pictures({1: 60.0, 2: 30.0}, host_ms))
        return 12e3 / shares.predict(case, "tp2", share, h200, link, tiles=tiles)

    edges = [50 * (link.alpha_us / 1e3 + 1 / link.beta_gb_s) for link in (h200.link, PCIE5)]
    assert ms(1) - ms(2) == pytest.approx(30 - edges[0])
    assert ms(2, link=PCIE5) - ms(2) == pytest.approx(edges[1] - edges[0])
    assert ms(2, host_ms=500.0) == pytest.approx(500.0)


def test_the_better_of_one_card_and_tiles_says_where_more_cards_stop_paying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "pictures_of", lambda _: pictures({1: 100.0, 2: 50.0, 4: 25.0}, 1.0))
    found = {f"sp{n}": {"share_ms": 100.0 / n, "whole_ms": 100.0, "sent": []} for n in (2, 4)}
    device = find_device("H200")
    best = shares.best_of(shares.CASES["1.3b-bf16"], found, device, device.link)
    assert list(best) == [1, 2, 4]
    assert all(more.in_tiles > fewer.in_tiles for fewer, more in pairwise(best.values()))
    assert all(each.fps == each.in_tiles[0] >= each.on_one[0] for each in best.values())
    assert str(best[4]).endswith("(sp4)")


def made_up(sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """A result as `benchmarks.tiles` writes it: so many tiles of each size."""
    whole_ms = 60.0
    sent = [{"kind": "edge", "bytes": 1_000_000, "times": 50}]

    def tile(count: int) -> dict[str, Any]:
        of = {"grid": f"{count}x1", "ms": whole_ms / count, "of_whole": 1 / count, "host_ms": 1.0}
        return of | {"sent": sent if count > 1 else []}

    measured = {size: {str(count): tile(count) for count in counts} for size, counts in sizes.items()}
    return {"measured": measured, "hardware": {"gpu": "a card"}, "versions": {"torch": "2"}, "commit": "0"}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of the committed results, without tiles."""
    for path in RESULTS.glob("*.json"):
        if path.name != "tiles.json":
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    return tmp_path


def page_of(folder: Path) -> str:
    page = folder / "page.md"
    page.write_text(distributed_page.PAGE.read_text())
    write_tables(page, distributed_page.tables_there())
    return page.read_text()


def cells_of(page: str, title: str, first: str) -> list[str]:
    """A row of the first table under such a title."""
    _, _, below = page.partition(title)
    return next(line for line in below.splitlines() if line.startswith(f"| {first} |")).split("|")


def test_without_tiles_the_page_has_predictions_of_whole_pictures_alone(results: Path) -> None:
    page = page_of(results)
    *_, on_one, in_tiles, _ = cells_of(page, "**wan2.1-t2v-14b, 320x576, window 9, fp8**", "tp2")
    assert float(on_one) > 0
    assert not in_tiles.strip()


def test_sizes_and_counts_that_were_not_measured_have_an_empty_column_and_others_do_not(
    results: Path,
) -> None:
    before = page_of(results)
    (results / "tiles.json").write_text(json.dumps(made_up({"480x832": (1, 2)})))
    page = page_of(results)
    small = "**wan2.1-t2v-1.3b, 480x832, window 9, bf16**"
    large = "**wan2.1-t2v-14b, 320x576, window 9, bf16**"
    assert float(cells_of(page, small, "sp2")[-2]) > float(cells_of(page, small, "sp2")[-3])
    assert not cells_of(page, small, "sp4")[-2].strip(), "not in four tiles"
    assert cells_of(page, large, "sp2") == cells_of(before, large, "sp2"), (
        "what was not measured is as before"
    )
    assert "60.0 ms" in cells_of(page, "<!-- benchmarks.tiles begins -->", "480x832")[3]


def test_a_run_that_is_cut_short_leaves_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, list[str]]] = []

    def write(name: str, asked: dict[str, Any], measured: dict[str, dict[str, Any]]) -> None:
        written.append({size: list(found) for size, found in measured.items()})

    def measure_some(*_: object) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "1", {}
        if len(written) > 1:
            raise KeyboardInterrupt
        yield "2", {}

    monkeypatch.setattr(
        sys, "argv", ["tiles", "--device", "cpu", "--model", "wan-tiny", "--sizes", "64x128", "32x64"]
    )
    monkeypatch.setattr(tiles, "measure", measure_some)
    monkeypatch.setattr(tiles, "write_report", write)
    with pytest.raises(KeyboardInterrupt):
        tiles.main()
    assert written[-1] == {"64x128": ["1", "2"], "32x64": ["1"]}


def test_what_a_recording_reads_is_held_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what would be recorded is called."""
    fakes: dict[str, Any] = {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "Stream": lambda: SimpleNamespace(wait_stream=lambda _: None),
        "current_stream": lambda: None,
        "stream": nullcontext,
        "graph": lambda graph, stream: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    network = FastVAE(vae())
    latents = torch.randn(1, 1, 4, 2, 2)
    state = (torch.zeros(2),)
    monkeypatch.setattr(FastVAE, "decode", lambda *_: None)
    read = [weakref.ref(each) for each in (network, latents, state[0])]
    replay = recorded(network, latents, state)
    del network, latents, state
    assert all(each() is not None for each in read)
    del replay
    assert all(each() is None for each in read)
