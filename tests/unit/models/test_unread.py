"""Weights that stay in their files until somebody needs them are those that would have been read at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from millstream.core.presets import MODELS
from millstream.models.adapters import add_adapters
from millstream.models.registry import load_dit
from millstream.models.weights.files import LastShard
from millstream.models.weights.unread import UnreadParameter, bring

SPEC = MODELS["wan-tiny"]
PLACE = dict(device=torch.device("cpu"), dtype=torch.float32)


def in_two_files(folder: Path) -> list[str]:
    values = {
        name: weight.detach().clone()
        for name, weight in load_dit(SPEC, ["random:3"], **PLACE).named_parameters()
    }
    first = {name: value for name, value in values.items() if name.startswith("blocks.0.")}
    rest = {name: value for name, value in values.items() if name not in first}
    files = {"model-1.safetensors": first, "model-2.safetensors": rest}
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [str(folder)]


def of_blocks(name: str) -> bool:
    return name.startswith("blocks.")


@pytest.mark.parametrize("stored", [True, False], ids=["files", "random"])
def test_what_is_brought_is_what_would_have_been_read(tmp_path: Path, stored: bool) -> None:
    weights = in_two_files(tmp_path) if stored else ["random:3"]
    whole = load_dit(SPEC, weights, **PLACE)
    found = load_dit(SPEC, weights, **PLACE, later=of_blocks)
    named = dict(found.named_parameters())
    assert {name for name, each in named.items() if isinstance(each, UnreadParameter)} == set(
        filter(of_blocks, named)
    )
    found.requires_grad_(requires_grad=True)
    bring(reversed(list(found.parameters())))
    bring(found.parameters())  # nothing is left to do
    assert all(named[name] is each and each.requires_grad for name, each in found.named_parameters())
    for name, expected in whole.named_parameters():
        assert torch.equal(named[name], expected), name


def test_a_block_is_read_when_it_is_brought_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, read, plain = in_two_files(tmp_path), list[str](), LastShard.read
    monkeypatch.setattr(
        LastShard, "read", lambda self, path, name: read.append(name) or plain(self, path, name)
    )
    found = load_dit(SPEC, weights, **PLACE, later=of_blocks)
    assert not any(map(of_blocks, read))
    read.clear()
    bring(found.blocks[1].parameters())
    assert sorted(read) == sorted(f"blocks.1.{name}" for name, _ in found.blocks[1].named_parameters())


def test_adapters_begin_alike_beside_weights_that_are_not_read() -> None:
    whole = load_dit(SPEC, ["random:3"], **PLACE)
    found = load_dit(SPEC, ["random:3"], **PLACE, later=of_blocks)
    for dit in (whole, found):
        torch.manual_seed(5)
        add_adapters(dit, rank=4, alpha=4, parts=("self_attn", "ffn"))
    bring(found.parameters())
    for (name, expected), (_, each) in zip(whole.named_parameters(), found.named_parameters(), strict=True):
        assert torch.equal(each, expected), name
