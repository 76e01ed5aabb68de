"""Keys in training: from a file's lines to a latent frame's vector, and a model that learns what they do.

Shapes: K clips, F latent frames, C channels, Y and X rows and columns, A numbers of an action.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.conditions import FrameActions
from millstream.core.config import ActionsConfig, BrookTextConfig, ConditionsConfig, DiTConfig
from millstream.models.brook.text import BrookText
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.train.data.frame_actions import (
    actions_file,
    at_rate,
    grouped_actions,
    latent_actions,
    numbers_of,
)
from millstream.train.methods.flow import FlowMethod, TextAndDiT
from millstream.train.options import FlowOptions
from millstream.train.pool import LatentPool
from millstream.train.rollout import recommit, ring_for, solve
from tests.unit.toy_training import CPU

CONFIG = ActionsConfig(keys=("a", "d"), look=True)


def test_a_latent_frame_has_the_keys_of_at_least_half_its_frames_and_all_of_its_turns() -> None:
    held = ["", "a", "a", "", "", "d", "d", "d", "a"]
    frames = [FrameActions(keys=tuple(keys), look=(4.5, -9.0)) for keys in held]
    assert latent_actions(frames, CONFIG).tolist() == [
        pytest.approx([0, 0, 0.1, -0.2]),
        pytest.approx([1, 0, 0.4, -0.8]),
        pytest.approx([0, 1, 0.4, -0.8]),
    ]


def test_a_renderer_s_tensors_say_the_same_as_records() -> None:
    names = ("w", "d", "a")
    keys = torch.rand(9, 3, generator=torch.Generator().manual_seed(0)) > 0.5
    look = torch.arange(18.0).view(9, 2)
    frames = [
        FrameActions(
            keys=tuple(name for name, is_held in zip(names, row, strict=True) if is_held), look=tuple(turn)
        )
        for row, turn in zip(keys.tolist(), look.tolist(), strict=True)
    ]
    found = grouped_actions(numbers_of(keys, look, names, CONFIG), CONFIG)
    torch.testing.assert_close(found, latent_actions(frames, CONFIG))
    batched = grouped_actions(numbers_of(keys[None], look[None], names, CONFIG), CONFIG)
    assert torch.equal(batched[0], found)


def test_actions_beside_a_video_are_found_as_csv_or_as_json_lines(tmp_path: Path) -> None:
    video = tmp_path / "walk.mp4"
    assert actions_file(video) is None
    lines = tmp_path / "walk.actions.jsonl"
    lines.write_text("")
    assert actions_file(video) == lines
    table = tmp_path / "walk.actions.csv"
    table.write_text("keys\n")
    assert actions_file(video) == table


def test_at_another_frame_rate_no_turn_is_lost_and_none_is_made() -> None:
    frames = [FrameActions(keys=("ab"[n % 2],), look=(float(n), 0.0)) for n in range(12)]
    halved = at_rate(frames, from_fps=24, fps=12)
    assert [frame.keys for frame in halved] == [("a",)] * 6
    assert [frame.look[0] for frame in halved] == [0, 1 + 2, 3 + 4, 5 + 6, 7 + 8, 9 + 10]
    doubled = at_rate(frames, from_fps=24, fps=48)
    assert len(doubled) == 24
    assert sum(frame.look[0] for frame in doubled) == sum(range(12))
    assert at_rate(frames, from_fps=24, fps=24) == frames


SIDE = 8
TOY = DiTConfig(
    layers=2, width=64, heads=2, ffn=128, channels=1, text_width=8, text_tokens=2, time_features=32
)
KEYS = ConditionsConfig(actions=ActionsConfig(keys=("left", "right")))
FRAMES = 3


def blob(column_K: Tensor) -> Tensor:
    """A bright column, on a circle of columns [K, 1, 2, X]."""
    away = (torch.arange(SIDE) - column_K[:, None] + SIDE / 2) % SIDE - SIDE / 2
    return (2 * torch.exp(-(away**2) / 2) - 0.6)[:, None, None, :].expand(-1, 1, 2, -1)


def toy_clips(count: int) -> LatentPool:
    """Clips in which it goes one column to the left or to the right in each frame whose key is held."""
    generator = torch.Generator().manual_seed(1)
    held = torch.randint(-1, 2, (count, FRAMES), generator=generator)
    start = torch.randint(SIDE, (count, 1), generator=generator)
    columns = start + held.cumsum(dim=1)
    latents = torch.stack([blob(columns[:, frame].float()) for frame in range(FRAMES)], dim=1)
    actions = torch.stack([held == -1, held == 1], dim=-1).float()
    nothing = torch.zeros(count, dtype=torch.long)
    return LatentPool(
        latents_KFCYX=latents,
        ids_KWS=torch.ones(count, 1, 2, dtype=torch.long),
        true_from_K=nothing,
        actions_KFA=actions,
    )


@torch.no_grad()
def moved(pair: TextAndDiT, key: int) -> Tensor:
    """Columns by which it goes from the first frame to the next, while this key is held, for each start."""
    starts = torch.arange(SIDE).float()
    first = blob(starts)[:, None]
    actions = torch.zeros(SIDE, 2, 2)
    actions[:, 1, key] = 1
    entries = pair.injectors(actions)
    cross = pair.dit.read_prompt(pair.text(torch.ones(SIDE, 2, dtype=torch.long)))
    ring = ring_for(pair.dit, tuple(first.shape), window=3, device=CPU, dtype=torch.float32)
    recommit(pair.dit, ring, cross, first, chunks=range(1), frames=1, entries=entries)
    ring.place([1])
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(2))
    levels = tuple(1000.0 * (1 - step / 8) for step in range(8))
    second = solve(pair.dit, noise, levels, ring, cross, entries.frames(slice(1, 2)))
    shapes = [blob(starts + by)[:, None] for by in (-1, 0, 1)]
    nearest = torch.stack([(second - shape).square().mean(dim=(1, 2, 3, 4)) for shape in shapes])
    return nearest.argmin(dim=0) - 1


@pytest.mark.slow
def test_a_model_that_was_taught_with_keys_goes_where_the_key_says() -> None:
    torch.manual_seed(0)
    text = BrookText(BrookTextConfig(vocabulary=4, tokens=2, width=8, layers=1, heads=1))
    pair = TextAndDiT(text, CausalDiT(TOY), Injectors(KEYS, TOY))
    options = FlowOptions(frames_per_chunk=1, window=3, shift=1.0, drop=0.0)
    method = FlowMethod(pair, toy_clips(512), batch=32, options=options)
    optimiser = torch.optim.AdamW(pair.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(3)
    (turn,) = method.turns
    for _ in range(200):
        optimiser.zero_grad()
        turn.losses(generator)["flow"].backward()
        optimiser.step()
    assert (moved(pair, 0) == -1).float().mean() >= 0.75
    assert (moved(pair, 1) == 1).float().mean() >= 0.75
