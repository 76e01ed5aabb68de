"""Walks in Brook's training: what is rendered, said and weighed, and what a cut run renders again.

Shapes: B clips, T pixel frames, F latent frames, A numbers of an action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.models.brook.text import WordTokenizer
from millstream.train.brook import BrookRun
from millstream.train.data.captions import WORDS
from millstream.train.data.frame_actions import idle_before
from millstream.train.data.walk.actions import held
from millstream.train.data.walk.captions import (
    ALL_WORDS,
    NEW_WORDS,
    UNMARKED,
    WALK_MARK,
    WalkAttributes,
    mentioned_of_walk,
    steered_captions,
)
from millstream.train.data.walk.scene import sample_walks
from millstream.train.methods.flow import FlowMethod
from millstream.train.options import FlowOptions
from millstream.train.plan import RunPlan, read_plan
from millstream.train.pool import LatentPool
from millstream.train.pool_rendering import Part, check_walks, covered, joined, vocabulary_of, walk_vectors
from millstream.train.recipe import RECIPES
from tests.unit.small_brook import SMALL_BROOK
from tests.unit.toy_training import CPU, pair, pool

KEYS = ActionsConfig(keys=("left", "w"), look=True)


def smoke(**changes: object) -> RunPlan:
    plan = read_plan(RECIPES / "brook-smoke.toml")
    return replace(plan, pool=replace(plan.pool, **changes))


def test_a_model_s_looks_are_to_the_right_and_down_and_its_keys_in_its_own_order() -> None:
    actions = held("w+left", 5)
    actions.look[0, 1:] = torch.tensor((9.0, 4.5))
    assert walk_vectors(actions, KEYS)[0].tolist() == [
        pytest.approx([1, 1, 0, 0]), pytest.approx([1, 1, 0.8, -0.4])
    ]  # fmt: skip


def test_a_latent_cell_is_a_thing_as_far_as_any_thing_covers_it_in_any_of_its_frames() -> None:
    masks = torch.zeros(1, 5, 2, 16, 8, dtype=torch.uint8)
    masks[0, 0, 1, :4, :] = 255
    masks[0, 3, 0, 8:, :] = 200
    assert covered(masks)[0, :, :, 0].tolist() == [[128, 0], [0, 200]]


def test_captions_leave_what_is_done_to_the_keys_and_say_which_world_it_is_unless_the_keys_do() -> None:
    walks = sample_walks(8, seed=3)
    nothing = torch.zeros(8, dtype=torch.long)
    found = WalkAttributes(step=nothing + 1, turn=nothing + 2, sight=torch.ones(8, 3, dtype=torch.bool))
    captions = [
        line
        for seed in range(12)
        for line in steered_captions(walks, found, [True] * 4 + [False] * 4, seed=seed)
    ]
    said = [mentioned_of_walk(line) for line in captions]
    assert all("setting" in each and "step" not in each and "turn" not in each for each in said)
    marked = [WALK_MARK in line for line in captions]
    assert all(is_marked for number, is_marked in enumerate(marked) if number % 8 >= 4)
    unmarked = marked.count(False) / (len(marked) / 2)
    assert abs(unmarked - UNMARKED) < 0.2
    assert not WordTokenizer(ALL_WORDS).read(" ".join(captions)).unknown


def test_words_of_walks_are_learnt_where_there_are_any() -> None:
    assert vocabulary_of(smoke()) == ALL_WORDS
    assert vocabulary_of(smoke(walks=0, walk_switches=0, vae_walks=0)) == WORDS
    assert set(NEW_WORDS) <= set(ALL_WORDS)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (smoke(walks=0), "set pool.walks above 0"),
        (replace(smoke(), actions=ActionsConfig(keys=("w", "jump"))), "actions of walks are keys"),
        (replace(smoke(), actions=ActionsConfig(keys=("w",), axes=2)), "and axes"),
    ],
)
def test_keys_that_no_walk_teaches_are_refused(plan: RunPlan, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_walks(plan)
    assert "\n" not in str(caught.value)


def test_a_time_limit_on_walks_is_refused_on_several_ranks() -> None:
    plan = smoke(walk_seconds=9)
    plan.check_ranks(1)
    with pytest.raises(ConfigError, match="walk_seconds = 9"):
        plan.check_ranks(2)


def test_scenes_hold_no_keys_and_have_no_things_that_anybody_knows() -> None:
    def part(count: int, **more: torch.Tensor) -> Part:
        common = {
            "latents": torch.ones(count, 2),
            "ids": torch.ones(count, 1, 3),
            "true_from": torch.zeros(count),
        }
        return common | more

    looks = {"looks": torch.ones(2, 1), "label.time": torch.ones(2)}
    walked = {
        "actions": torch.ones(1, 2, 3),
        "walks": torch.ones(1, dtype=torch.bool),
        "things": torch.ones(1, 2),
    }
    latents, thumbnails = joined([part(2, **looks), part(3), part(1, **walked)])
    assert latents.actions_KFA is not None
    assert latents.actions_KFA.sum(dim=(1, 2)).tolist() == [0] * 5 + [6]
    assert latents.walks_K is not None
    assert latents.walks_K.tolist() == [False] * 5 + [True]
    assert (len(latents.ids_KWS), len(thumbnails.pixels_KTCYX), set(thumbnails.labels)) == (6, 2, {"time"})
    plain, _ = joined([part(2, **looks)])
    assert (plain.actions_KFA, plain.walks_K, plain.things_KFYX) == (None, None, None)


def test_set_changes_a_recipe_and_says_what_it_cannot(tmp_path: Path) -> None:
    recipe = RECIPES / "brook-smoke.toml"
    plan = read_plan(recipe, ["pool.walks=7", "stages.teacher.options.drop = 0.5", 'model="other"'])
    assert (plan.pool.walks, plan.stage("teacher").options["drop"], plan.model) == (7, 0.5, "other")
    for change, says in (
        ("pool.walks", "--set takes NAME=VALUE"),
        ("stages.nobody.steps=3", "the recipe has no nobody"),
        ("model=brook", "is no TOML value"),
        ("pool.walsk=3", "did you mean walks"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            read_plan(recipe, [change])
        assert "\n" not in str(caught.value)


def test_the_recipe_of_a_brook_to_walk_in_takes_every_key() -> None:
    plan = read_plan(RECIPES / "brook-walk.toml")
    check_walks(plan)
    assert plan.actions is not None
    assert plan.actions.features == 10
    kept = {stage.name for stage in read_plan(RECIPES / "brook.toml").stages}
    assert {stage.name for stage in plan.stages} == kept | {"motion"}


def test_nothing_is_held_in_a_picture_s_frames() -> None:
    actions = torch.ones(1, 3, 2)
    assert idle_before(actions, 0) is actions
    assert idle_before(None, 1) is None
    shown = idle_before(actions, 1)
    assert shown is not None
    assert shown[0].tolist() == [[0, 0], [1, 1], [1, 1]]


@pytest.mark.slow
def test_a_share_of_the_steps_comes_after_a_clip_s_first_frame() -> None:
    def loss(first_frame: float, changed: int) -> float:
        clips = changed_in(pool(), changed)
        model = pair()
        model.dit.head.proj.weight.data.zero_()  # then a flow does not depend on the context
        options = FlowOptions(window=6, first_frame=first_frame)
        (turn,) = FlowMethod(model, clips, batch=4, options=options).turns
        return float(turn.losses(torch.Generator().manual_seed(0))["flow"].detach())

    def changed_in(clips: LatentPool, changed: int) -> LatentPool:
        latents = clips.latents_KFCYX.clone()
        latents[:, changed] += 9.0
        return dataclasses.replace(clips, latents_KFCYX=latents, true_from_K=torch.zeros(8, dtype=torch.long))

    assert loss(0.0, 0) != loss(0.0, 1)
    given = loss(1 - 1e-9, 0)
    assert given != loss(1 - 1e-9, 1), "frame 1 is learnt"
    assert given == loss(1 - 1e-9, 5), "of six frames the first is given, then there is one whole chunk"


@pytest.mark.slow
def test_an_error_counts_more_where_a_thing_is() -> None:
    def loss(weight: float, cover: int) -> float:
        clips = pool()
        things = torch.zeros(8, 6, 4, 4, dtype=torch.uint8)
        things[:, :, :2] = cover
        (turn,) = FlowMethod(
            pair(),
            dataclasses.replace(clips, things_KFYX=things),
            batch=4,
            options=FlowOptions(window=6, thing_weight=weight),
        ).turns
        return float(turn.losses(torch.Generator().manual_seed(0))["flow"].detach())

    assert loss(0.0, 255) == loss(2.0, 0)
    assert loss(2.0, 0) < loss(2.0, 128) < loss(2.0, 255) < 3 * loss(2.0, 0)


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "brook", SMALL_BROOK)


@pytest.mark.slow
@pytest.mark.usefixtures("_narrow")
def test_a_run_that_was_cut_short_renders_only_the_rest(tmp_path: Path) -> None:
    plan = smoke(clips=2, switches=1, walks=2, walk_switches=0, latent_frames=2, walk_batch=1, size=32)
    made = list[str]()

    def run(stop_after: int | None) -> BrookRun:
        brook = BrookRun(plan, tmp_path, device=CPU)
        part = brook._part

        def counted(name: str, make: Callable[[], Part]) -> Part:
            def made_here() -> Part:
                if len(made) == stop_after:
                    raise KeyboardInterrupt
                made.append(name)
                return make()

            return part(name, made_here)

        brook._part = counted  # type: ignore[method-assign]
        return brook

    with pytest.raises(KeyboardInterrupt):
        run(3)._pools()
    found = run(None)._pools()[0]
    assert made == ["scenes-0000-2", "switches-0001-1", "walks-00000-1", "walks-00001-1"]
    again = run(0)._pools()[0]
    assert torch.equal(found.latents_KFCYX, again.latents_KFCYX)
    assert found.walks_K is not None
    assert found.walks_K.tolist() == [False] * 3 + [True] * 2
    assert msgspec.json.decode((tmp_path / "rendered" / "whole.json").read_bytes()) == made
