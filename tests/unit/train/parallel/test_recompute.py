"""What is made again is what was there, and less is kept meanwhile; compiled blocks learn the same."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch._dynamo.utils import counters

from millstream.core.config import Recompute
from millstream.models.dit import CausalDiT
from millstream.models.kv import KVRing
from millstream.models.prompted import PromptedDiT
from millstream.models.ring_shape import RingShape
from millstream.ops import piecewise
from millstream.ops.attention import attend_with_sum
from millstream.train import sequence
from millstream.train.parallel.recompute import prepare_blocks
from millstream.train.sequence import ChunkedSequence, diffusion_forced
from tests.soak.train_equality import (
    CHUNKS,
    FRAMES_PER_CHUNK,
    LATENT_SIZE,
    MODELS,
    WINDOW,
    batches,
    mean_square,
)

CONFIG = MODELS["tiny"]


def learnt(how: Recompute, backend: str = "") -> tuple[list[torch.Tensor], int]:
    """Gradients, and the bytes that were kept for the backward pass."""
    torch.manual_seed(0)
    dit = CausalDiT(CONFIG)
    prepare_blocks(dit, how, backend=backend)
    layout = diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW)
    model = PromptedDiT(dit, ChunkedSequence(layout, CONFIG, LATENT_SIZE, torch.device("cpu")))
    kept = dict[int, int]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = next(iter(batches(CONFIG, 0, 1)))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = mean_square(model(*rows[:3]), rows.target_BFCYX)
    held = sum(kept.values())
    loss.backward()
    return [parameter.grad for parameter in dit.parameters()], held


@pytest.mark.parametrize("how", ["selective", "products", "full"])
def test_gradients_are_the_same_bits(how: Recompute) -> None:
    assert all(map(torch.equal, learnt(how)[0], learnt("none")[0]))


def test_full_keeps_less_than_everything() -> None:
    assert learnt("full")[1] < 0.2 * learnt("none")[1]


@cache
def compiled(how: Recompute) -> tuple[list[torch.Tensor], int, int]:
    """The same, and the number of graphs that it took."""
    torch._dynamo.reset()
    counters.clear()
    return (*learnt(how, "aot_eager"), counters["stats"]["unique_graphs"])


@pytest.mark.slow  # it compiles
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # the compiler looks at its inputs
@pytest.mark.parametrize("how", get_args(Recompute))
def test_compiled_blocks_learn_the_same_and_all_layers_are_one_graph(how: Recompute) -> None:
    for found, expected in zip(compiled(how)[0], learnt("none")[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert compiled(how)[2] == 1, f"{CONFIG.layers} layers"


@pytest.mark.slow  # it compiles, if it is alone
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_keep_less_the_more_is_made_again() -> None:
    held = [compiled(how)[1] for how in get_args(Recompute)]
    assert held == sorted(set(held), reverse=True)


@pytest.mark.slow  # it compiles
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["", "aot_eager"])
@pytest.mark.parametrize("how", get_args(Recompute))
def test_pieces_beside_each_other_are_kept_as_attention_is(
    how: Recompute, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: what self-attention gave is made once, unless all is made again."""
    expected = learnt("none")[0]
    calls = list[int]()

    def counted(q_BLNH: torch.Tensor, *given: Any) -> Any:
        calls.append(q_BLNH.shape[1])
        return attend_with_sum(q_BLNH, *given)

    monkeypatch.setattr(piecewise, "attend_with_sum", counted)
    monkeypatch.setattr(sequence, "_has_cudnn", lambda *_: True)
    monkeypatch.setattr(sequence, "HALF", (torch.float32,))
    torch._dynamo.reset()
    found = learnt(how, backend)[0]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert len(calls) == CONFIG.layers * CHUNKS * (2 if how == "full" else 1)


@pytest.mark.slow
def test_a_compiled_block_streams_through_a_ring_as_before() -> None:
    flows = [_streamed(backend) for backend in ("", "aot_eager")]
    assert torch.equal(*flows)


@torch.no_grad()
def _streamed(backend: str) -> torch.Tensor:
    """The flow of a second chunk, after a first that is in a ring's layers."""
    torch.manual_seed(0)
    dit = CausalDiT(CONFIG)
    prepare_blocks(dit, "none", backend=backend)
    grid = LATENT_SIZE[0] // CONFIG.patch, LATENT_SIZE[1] // CONFIG.patch
    shape = RingShape(
        layers=CONFIG.layers,
        heads=CONFIG.heads,
        head_width=CONFIG.head_width,
        grid=grid,
        window=WINDOW,
        sink=0,
    )
    ring = KVRing(shape, device=torch.device("cpu"), dtype=torch.float32)
    cross = dit.read_prompt(torch.randn(1, CONFIG.text_tokens, CONFIG.text_width))
    for chunk in range(2):
        ring.place(range(chunk * FRAMES_PER_CHUNK, (chunk + 1) * FRAMES_PER_CHUNK))
        latents = torch.randn(1, FRAMES_PER_CHUNK, CONFIG.channels, *LATENT_SIZE)
        flow = dit(latents, torch.full((1, FRAMES_PER_CHUNK), 500.0), ring, cross)
    return flow
