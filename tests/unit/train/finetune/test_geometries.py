"""A sequence that turns to each size is what a sequence of that size is."""

from __future__ import annotations

import torch

from millstream.train.finetune.geometries import MOST, SizedSequence
from millstream.train.sequence import ChunkedSequence, diffusion_forced
from tests.unit.train.finetune.datasets import SPEC

CPU = torch.device("cpu")
LAYOUT = diffusion_forced(3, 2, 4)


def test_each_size_attends_as_a_sequence_of_its_own() -> None:
    sized = SizedSequence(LAYOUT, SPEC.dit, (4, 4), CPU)
    for size in ((4, 8), (4, 4), (8, 4), (4, 8)):
        plain = ChunkedSequence(LAYOUT, SPEC.dit, size, CPU)
        sized.turn_to(size)
        assert (sized.num_tokens, sized.keys_per_query) == (plain.num_tokens, plain.keys_per_query)
        assert torch.equal(sized.phases.cos, plain.phases.cos)
        q, k, v = torch.randn(3, 1, plain.num_tokens, 2, 24)
        assert torch.equal(sized.attend(0, q, k, v), plain.attend(0, q, k, v))


def test_what_was_used_last_is_kept_and_no_more_than_a_few() -> None:
    sized = SizedSequence(LAYOUT, SPEC.dit, (4, 4), CPU)
    for width in range(2, 2 * MOST, 2):
        sized.turn_to((4, 4))
        kept = sized.phases.cos
        sized.turn_to((8, width))
    sized.turn_to((4, 4))
    assert sized.phases.cos is kept
    assert len(sized._made) == MOST
