"""What a stream is worth: formulas by hand, classifiers on renders, and rewards of other people that
misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from millstream.core.errors import ConfigError, RewardFailed
from millstream.ops.pixels import from_bytes, to_bytes
from millstream.train.data.captions import canonical_captions
from millstream.train.data.render import render
from millstream.train.data.scene import sample_scenes
from millstream.train.data.vocabulary import COLOURS, THINGS
from millstream.train.evaluate.classifier import (
    FRAMES,
    HeldBackJudge,
    load_classifier,
    save_classifier,
    thinned,
)
from millstream.train.evaluate.held_back import JudgeTraining, render_looks, train_judge
from millstream.train.reward.analytic import brightness, colour_drift, edges, flicker, motion
from millstream.train.reward.attributes import _log_sure, _mean_of_asked, asked_of
from millstream.train.reward.clips import RewardClips
from millstream.train.reward.outside import HTTPScore, find_function
from millstream.train.reward.rewards import (
    PerClipReward,
    RewardPlan,
    RewardSet,
    RewardTerm,
    make_rewards,
    within,
)

CPU = torch.device("cpu")


def clips(levels: list[list[int]]) -> RewardClips:
    """Clips of 2x2 pixels, each frame of one grey level."""
    pixels = torch.tensor(levels, dtype=torch.uint8)[:, :, None, None, None].expand(-1, -1, 3, 2, 2)
    return RewardClips(pixels_BTCYX=pixels, prompts=tuple("sea" for _ in levels), fps=16.0)


def test_brightness_is_0_for_black_and_1_for_white() -> None:
    assert brightness(clips([[0, 0], [255, 255], [0, 255]])).tolist() == pytest.approx([0, 1, 0.5])


def test_motion_is_the_mean_change_of_a_frame() -> None:
    assert motion(clips([[0, 0, 0], [0, 255, 0], [0, 51, 102]])).tolist() == pytest.approx([0, 1, 0.2])


def test_what_changes_evenly_does_not_flicker() -> None:
    even, restless = flicker(clips([[0, 50, 100, 150], [0, 100, 0, 100]])).tolist()
    assert even == pytest.approx(0, abs=1e-6)
    assert restless == pytest.approx(-200 / 127.5 / 4)


def test_gradients_follow_formulas_of_pixels_and_not_what_only_shows() -> None:
    plans = [
        RewardPlan(kind="flicker", scale=2.0),
        RewardPlan(kind="motion"),
        RewardPlan(kind="python", call="math:fsum"),
    ]
    rewards = make_rewards(plans, Path(), CPU, frames_per_chunk=3, patience=9)
    seen = clips([[0, 255, 0, 255]])
    pixels = from_bytes(seen.pixels_BTCYX).requires_grad_(True)
    worth = rewards.followed(replace(seen, pixels_BTCYX=pixels), torch.Generator())
    assert worth.tolist() == pytest.approx([2.0 * -1.0 + 1.0]), "flickers and moves as much as it can"
    worth.sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


def test_edges_are_the_steepest_steps_between_neighbours() -> None:
    flat, soft, crisp = torch.zeros(3, 2, 3, 10, 20, dtype=torch.uint8).unbind()
    soft[..., 10], soft[..., 11:] = 51, 102
    crisp[..., 10:] = 102
    found = edges(
        RewardClips(pixels_BTCYX=torch.stack([flat, soft, crisp]), prompts=("",) * 3, fps=16.0)
    ).tolist()
    assert found == pytest.approx([0, 0.2, 0.4], abs=1e-6)


def test_drift_is_between_the_first_and_the_last_quarter() -> None:
    still, back, drifted = colour_drift(
        clips([[9] * 8, [0, 0, 255, 255, 255, 255, 0, 0], [0, 0, 90, 9, 1, 7, 51, 51]])
    ).tolist()
    assert (still, back, drifted) == pytest.approx((0, 0, -0.2), abs=1e-6)


@pytest.mark.slow
def test_the_bundled_classifier_rewards_renders_for_their_own_prompts() -> None:
    scenes = sample_scenes(3, seed=11)
    pixels = to_bytes(render(scenes, frames=FRAMES, size=(128, 128)))
    prompts = canonical_captions(scenes)
    rewards = make_rewards(
        [RewardPlan(kind="attributes"), RewardPlan(kind="switch")],
        Path(),
        CPU,
        frames_per_chunk=3,
        patience=9,
    )
    own, others = (
        rewards.score(RewardClips(pixels_BTCYX=pixels, prompts=tuple(said), fps=16.0, is_switched=True))
        for said in (prompts, prompts[1:] + prompts[:1])
    )
    assert (
        own.terms["attributes"] - others.terms["attributes"],
        own.terms["switch"] - others.terms["switch"],
    ) > (0.2, 0.2)
    assert rewards.terms[0].cost_s > 0


def set_of(score: Callable[[np.ndarray, str, float], object], patience: int = 5) -> RewardSet:
    return RewardSet([RewardTerm("theirs", PerClipReward(score, 0.2, patience), 2.0)], patience)


def moody(frames: np.ndarray, prompt: str, fps: float) -> object:
    """A number for grey clips, and trouble for those that are darker."""
    trouble = int(frames.flat[0])
    if trouble == 1:
        raise RuntimeError("in a\nbad mood")
    if trouble == 2:
        time.sleep(1)
    return {3: float("nan"), 4: np.zeros((2, 2)), 5: "many", 6: None}.get(trouble, trouble / 100)


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (1, "RuntimeError: in a bad mood"),
        (2, "no answer within 0.2 s"),
        (3, "nan"),
        (4, "TypeError"),
        (5, "ValueError"),
    ],
)
def test_a_clip_whose_reward_misbehaves_is_left_out_alone_and_a_line_says_why(trouble: int, why: str) -> None:
    scored = set_of(moody).score(clips([[100], [trouble], [50]]))
    assert scored.known_B.tolist() == [True, False, True]
    assert scored.total_B.tolist() == pytest.approx([2.0, 0.0, 1.0])
    (line,) = scored.said
    assert why in line
    assert "\n" not in line


def test_too_many_clips_in_a_row_end_the_run_in_one_line() -> None:
    rewards = set_of(moody)
    rewards.score(clips([[100], [3], [3], [3], [3]]))
    with pytest.raises(RewardFailed, match="5 clips in a row") as caught:
        rewards.score(clips([[6], [100]]))
    assert "\n" not in str(caught.value)


def test_a_batch_reward_of_the_wrong_shape_leaves_its_batch_out() -> None:
    def wrong(given: RewardClips) -> Tensor:
        return torch.zeros(len(given), 2)

    scored = RewardSet([RewardTerm("wrong", wrong, 1.0)], patience=9).score(clips([[1], [2]]))
    assert not scored.known_B.any()
    assert "shape (2, 2) for 2 clips" in scored.said[0]


def test_what_it_raises_reaches_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_a_function_is_found_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def bright(frames, prompt, fps):\n    return frames.mean() / 255\n"
    )
    rewards = make_rewards(
        [RewardPlan(kind="python", call="my_rewards:bright")], tmp_path, CPU, frames_per_chunk=3, patience=3
    )
    assert rewards.score(clips([[255, 0]])).total_B.tolist() == pytest.approx([0.5])
    for wrong in ("my_rewards", "my_rewards:none", "no_such_module:f"):
        with pytest.raises(ConfigError):
            find_function(wrong, tmp_path)


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["prompt"] == "hang":
            time.sleep(0.5)
        self.send_response(500 if asked["prompt"] == "fail" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"reward": asked["frames"] * asked["width"]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_service_is_asked_and_may_fail_or_hang(service: str) -> None:
    pixels = torch.zeros(3, 4, 3, 2, 6, dtype=torch.uint8)
    given = RewardClips(pixels_BTCYX=pixels, prompts=("sea", "fail", "hang"), fps=16.0)
    rewards = RewardSet([RewardTerm("http", PerClipReward(HTTPScore(service, 0.2), 0.3, 9), 1.0)], patience=9)
    scored = rewards.score(given)
    assert scored.known_B.tolist() == [True, False, False]
    assert float(scored.total_B[0]) == 24
    with pytest.raises(ConfigError, match="http or https"):
        HTTPScore("file:///etc/passwd", 1.0)


@pytest.mark.parametrize(
    "wrong",
    [dict(kind="python"), dict(kind="attributes", names=("taste",)), dict(kind="motion", scale=float("nan"))],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RewardPlan(**wrong).check()


@pytest.mark.slow
def test_a_held_back_judge_is_trained_saved_and_read_again(tmp_path: Path) -> None:
    plan = JudgeTraining(clips=4, steps=2, batch=2, examined=2, size=64)
    path, found = train_judge(plan, render_looks(plan, CPU), tmp_path, CPU, lambda report: None)
    judge = load_classifier(path, CPU)
    assert isinstance(judge, HeldBackJudge)
    assert set(found) == {"setting", "time", "weather", "thing", "colour", "motion"}
    looks = thinned(torch.rand(2, FRAMES, 3, 64, 64))
    assert judge(looks)["thing"].shape == (2, 12)
    assert judge.features(looks).isfinite().all()
    with pytest.raises(ConfigError, match="held back"):
        JudgeTraining(architecture="oracle")


@pytest.mark.slow
def test_judges_of_both_kinds_are_told_apart_by_their_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    judge = HeldBackJudge().half().float()
    save_classifier(tmp_path / "j.safetensors", judge)
    looks = torch.rand(1, 9, 3, 128, 128)
    assert torch.equal(
        load_classifier(tmp_path / "j.safetensors", CPU)(looks)["motion"], judge(looks)["motion"]
    )


def test_of_two_things_either_is_what_was_asked_for() -> None:
    """And not how one of them moves that cannot move so: the prompt does not say it."""
    asked = asked_of(
        "a small red bird and a large blue whale rising slowly on the sea by day in clear weather"
    )
    assert (asked["thing"], asked["colour"]) == (
        (THINGS.index("bird"), THINGS.index("whale")),
        (0, COLOURS.index("blue")),
    )
    assert "motion" not in asked, "whales do not rise"
    assert {"motion", "colour"} <= asked_of("a red bird and a blue balloon rising over the sea").keys()
    assert "colour" not in asked_of("a bird and a blue balloon rising over the sea"), "the bird may have any"
    scores = torch.zeros(2, len(THINGS))
    scores[:, asked["thing"][1]] = 9.0
    log_sure = _log_sure(scores.requires_grad_(True), [asked, {}], "thing")
    assert float(log_sure[0].detach().exp()) > 0.99
    assert log_sure[1].isnan()
    _mean_of_asked(log_sure[:, None]).sum().backward()
    assert scores.grad is not None
    assert scores.grad[0].any()
    assert not scores.grad[1].any(), "what is not asked for teaches nothing"
