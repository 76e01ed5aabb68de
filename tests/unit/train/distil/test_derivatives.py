"""Forward-mode derivatives: of attention against torch's own over written-out scores, of a whole DiT against
small steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.core.config import Recompute
from millstream.models.prompted import PromptedDiT
from millstream.ops import forward_mode
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.recompute import prepare_blocks
from millstream.train.sequence import ChunkedSequence, teacher_forced
from tests.unit.models_for_tests import DIT, dit, relative_error


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("still", [(), (1,), (0, 2)])
def test_attention_changes_as_its_scores_written_out_do(
    monkeypatch: pytest.MonkeyPatch, still: tuple[int, ...]
) -> None:
    monkeypatch.setattr(forward_mode, "MOST_SCORES", 2 * 2 * 7 * 3)  # three queries at a time
    generator = torch.Generator().manual_seed(0)
    of = tuple(torch.randn(2, 2, length, 4, generator=generator) for length in (8, 7, 7))
    by = tuple(
        torch.zeros_like(x) if index in still else torch.randn(x.shape, generator=generator)
        for index, x in enumerate(of)
    )

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v

    _, expected = torch.func.jvp(written_out, of, by)
    given = tuple(None if index in still else x for index, x in enumerate(by))
    torch.testing.assert_close(forward_mode.attention_change(of, given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_a_flow_changes_as_small_steps_say(recompute: Recompute) -> None:
    generator = torch.Generator().manual_seed(1)
    sequence = ChunkedSequence(teacher_forced(range(2), 1, 2), DIT, (4, 4), torch.device("cpu"))
    model = dit()
    prepare_blocks(model, recompute)
    predictor = Predictor(PromptedDiT(model, sequence), "fp32", parts=2)
    latents, moves = torch.randn(2, 2, 3, DIT.channels, 4, 4, generator=generator).unbind(0)
    level = torch.tensor([[0.0, 400.0, 700.0]]).repeat(2, 1)
    levels_move = torch.tensor([[0.0, 1000.0, 1000.0]]).repeat(2, 1)
    text = torch.randn(2, DIT.text_tokens, DIT.text_width, generator=generator)
    flow, change = predictor.changing_flows(latents, level, text, sequence, (moves, levels_move))
    torch.testing.assert_close(flow, predictor.flows(latents, level, text, sequence))
    step = 1e-4  # a tenth of a level, the fastest of whose waves is six long
    later, before = (
        predictor.flows(latents + sign * step * moves, level + sign * step * levels_move, text, sequence)
        for sign in (1, -1)
    )
    assert relative_error(change, (later - before) / (2 * step)) < 1e-2
    assert change.abs().max() > 0.1, "something changes"
