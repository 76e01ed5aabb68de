"""Comparing with others: who cannot run says why, and only who ran has a ratio."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from benchmarks.compare import SETUPS, apart, ratios, theirs
from benchmarks.peers import Diffusers, Stage
from millstream.core.presets import MODELS

pytestmark = pytest.mark.slow

TINY = MODELS["wan-tiny"]
STAGE = Stage(spec=TINY, stream=TINY.stream, device=torch.device("cpu"), dtype=torch.float32, chunks=1)


class Absent:
    name = "absent"

    def why_not(self) -> str:
        return "the package absent is not installed"

    def measure(self, stage: Stage) -> dict[str, Any]:
        raise AssertionError("it was not asked whether it can run")


class Broken:
    name = "broken"

    def why_not(self) -> str:
        return ""

    def measure(self, stage: Stage) -> dict[str, Any]:
        raise ValueError("expects another card")


def test_a_peer_that_cannot_run_says_why() -> None:
    assert theirs(Absent(), STAGE) == {"cannot_run": "the package absent is not installed"}
    assert theirs(Broken(), STAGE) == {"cannot_run": "ValueError: expects another card"}


def test_a_peer_is_measured_in_a_process_of_its_own_and_says_there_too_why_it_cannot() -> None:
    options = argparse.Namespace(model="wan-tiny", size="16x16", window=3, chunks=1, device="cpu", peer=None)
    found = apart("diffusers", SETUPS[""], options)
    assert found["chunk_ms"] == pytest.approx(found["calls_ms"] + found["decode_ms"])
    assert "invalid choice" in apart("unheard", {}, options)["cannot_run"]


def test_only_who_ran_has_a_ratio() -> None:
    fast = {"calls_ms": 2.0, "decode_ms": 1.0, "chunk_ms": 4.0}
    peers = {"slow": {"calls_ms": 4.0, "decode_ms": 3.0, "chunk_ms": 7.0}, "absent": {"cannot_run": "…"}}
    assert ratios(fast, peers) == {"slow": {"calls": 2.0, "decode": 3.0, "chunk": 1.75}}


@pytest.mark.filterwarnings("ignore")  # somebody else's
def test_diffusers_blocks_see_the_whole_window(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models.transformers import transformer_wan

    seen = set()
    theirs_before = transformer_wan.dispatch_attention_fn

    def watched(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.add((query.shape[1], key.shape[1]))
        return theirs_before(query, key, value, **options)

    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", watched)
    found = Diffusers().measure(STAGE)
    assert seen == {(3 * 4, 9 * 4), (3 * 4, TINY.dit.text_tokens)}
    assert found["calls_ms"] > 0
    assert transformer_wan.dispatch_attention_fn is watched
