"""The judge of motion: what a camera does and what keys ask for are counted alike, and it learns to tell sides.

Shapes: B walks, T pixel frames, F latent frames, M motions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError, WeightsError
from millstream.train.data.render import FPS
from millstream.train.data.walk.actions import Actions, held
from millstream.train.data.walk.scene import sample_walks
from millstream.train.data.walk.walker import walk
from millstream.train.evaluate.motion import (
    MOTIONS,
    MotionJudge,
    MotionPool,
    asked,
    load_motion_judge,
    looks_of,
    moved,
    read_motion,
    save_motion_judge,
)
from millstream.train.evaluate.walks import motion_figures
from millstream.train.loop import TurnTraining
from millstream.train.methods.motion import MotionMethod
from millstream.train.plan import StagePlan
from millstream.train.pool_rendering import walk_vectors
from tests.unit.toy_training import CPU

TAKES = ActionsConfig(keys=("w", "a", "s", "d", "up", "down", "left", "right"), look=True)


@pytest.mark.parametrize("keys", ["w", "s", "a", "d", "w+right", "w+a", "left", "up", "down+left"])
def test_what_keys_ask_for_is_what_the_camera_does(keys: str) -> None:
    walks = sample_walks(1, seed=2)
    actions = held(keys, 9)
    did = moved(walk(walks, actions, fps=FPS))[0]
    wanted = asked(walk_vectors(actions, TAKES), TAKES)[0, 1:]
    # a step is counted from where the frame began to look, and the camera may turn on the way
    torch.testing.assert_close(did, wanted, atol=0.2 if "+" in keys else 1e-4, rtol=0.0)


def test_a_look_by_mouse_is_asked_for_as_the_camera_turns() -> None:
    actions: Actions = held("w", 9)
    actions.look[0, :, 0] = 2.0
    actions.look[0, :, 1] = -1.0
    did = moved(walk(sample_walks(1, seed=2), actions, fps=FPS))[0, :, 2:]
    torch.testing.assert_close(
        did, asked(walk_vectors(actions, TAKES), TAKES)[0, 1:, 2:], atol=1e-4, rtol=0.0
    )


def test_figures_of_motion_name_sides_drift_and_what_there_is_nothing_of() -> None:
    wanted = torch.zeros(1, 4, 4)
    wanted[0, :2, 2] = torch.tensor((1.0, -1.0))
    read = torch.zeros(1, 4, 4)
    read[0, :, 2] = torch.tensor((0.5, 0.25, 0.1, -0.3))
    found = motion_figures(read, wanted)
    assert (found.right_sign["turn"], found.frames["turn"], found.idle_frames) == (0.5, 2, 2)
    assert found.drift["turn"] == pytest.approx(-0.1 * 60)
    assert found.restless["turn"] == pytest.approx(0.2 * 60)
    assert (found.correlation["ahead"], found.right_sign["ahead"]) == (None, None)
    assert found.correlation["turn"] == pytest.approx(0.3046, abs=1e-3)


def test_a_look_is_a_latent_frame_and_the_one_before_it() -> None:
    pixels = torch.arange(9, dtype=torch.uint8).mul(20)[None, :, None, None, None].expand(1, 9, 3, 96, 96)
    looks = looks_of(pixels)
    assert looks.shape == (1, 2, 5, 3, 96, 96)
    shown = (looks[0, :, :, 0, 0, 0] + 1) * 127.5
    assert shown.round().tolist() == [[0, 20, 40, 60, 80], [80, 100, 120, 140, 160]]


def test_a_judge_is_read_back_and_another_file_is_refused(tmp_path: Path) -> None:
    judge = MotionJudge()
    save_motion_judge(tmp_path / "motion.safetensors", judge)
    found = load_motion_judge(tmp_path / "motion.safetensors", CPU)
    looks = torch.rand(2, 5, 3, 96, 96)
    torch.testing.assert_close(found(looks), judge(looks), atol=2e-2, rtol=0.0)
    with pytest.raises(WeightsError, match="no judge of motion"):
        load_motion_judge(tmp_path / "none.safetensors", CPU)


def panned(count: int, seed: int) -> MotionPool:
    """Noise with large and small spots that goes past to either side: cheap renders of a turn."""
    generator = torch.Generator().manual_seed(seed)
    spots = torch.rand(count, 3, 12, 24, generator=generator)
    wide = torch.nn.functional.interpolate(spots, size=(96, 192), mode="bilinear").mul(255).to(torch.uint8)
    turn = torch.rand(count, generator=generator) * 2 - 1
    frames = []
    for frame in range(5):
        left = (48 + 6 * frame * turn).round().long()
        frames.append(
            torch.stack([one[:, :, at : at + 96] for one, at in zip(wide, left.tolist(), strict=True)])
        )
    motions = torch.zeros(count, 1, len(MOTIONS))
    motions[:, 0, MOTIONS.index("turn")] = turn
    return MotionPool(pixels_BTCYX=torch.stack(frames, dim=1), motions_BFM=motions)


@pytest.mark.slow
def test_it_learns_to_which_side_a_camera_turns() -> None:
    torch.manual_seed(0)
    judge = MotionJudge(width=16)
    stage = StagePlan(name="motion", method="motion", steps=100, batch=32, lr=3e-3, warm_up=5, ema=0.0)
    training = TurnTraining(MotionMethod(judge, panned(192, 1), batch=32), stage, seed=0, device=CPU)
    for step in range(stage.steps):
        training.step(step)
    unseen = panned(64, 2)
    turns = unseen.motions_BFM[..., MOTIONS.index("turn")]
    read = read_motion(judge.eval(), unseen.pixels_BTCYX)[..., MOTIONS.index("turn")]
    clear = turns.abs() > 0.2
    assert (read.sign() == turns.sign())[clear].float().mean() >= 0.8


def test_a_model_of_words_alone_is_refused_in_one_line() -> None:
    from millstream.models.registry import LoadedModel
    from millstream.train.evaluate.walks import actions_of_model
    from tests.unit.models_for_tests import tiny_engine

    model: LoadedModel = tiny_engine().model
    with pytest.raises(ConfigError, match="takes no keys") as caught:
        actions_of_model(model)
    assert "\n" not in str(caught.value)
