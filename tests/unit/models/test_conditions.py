"""Injectors: what a key, a mouse and a camera enter a DiT as, and that nothing enters where nothing is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from millstream.core.conditions import STILL, CameraMotion, FrameActions, FrameConditions
from millstream.core.config import NO_CONDITIONS, ActionsConfig, ConditionsConfig, DiTConfig
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS, find_model
from millstream.models.brook.bundle import build, save_bundle
from millstream.models.conditions.actions import action_vectors
from millstream.models.conditions.camera import own_lens, ray_changes
from millstream.models.conditions.files import FILE, conditions_in, load_injectors, save_injectors
from millstream.models.conditions.injectors import KEPT_ACTIONS, KEPT_CAMERAS, Injectors
from millstream.models.entries import NO_ENTRIES, Entries, join_frames, join_rows
from millstream.models.registry import described, load_dit, load_model, load_model_injectors
from millstream.models.weights.convert import convert
from millstream.models.weights.fill import fill_random
from millstream.models.weights.locate import locate
from millstream.models.weights.write import write_dit
from tests.unit.models_for_tests import dit, ring, shaken
from tests.unit.small_brook import SMALL_BROOK

DIT = DiTConfig(
    layers=2, width=24, heads=2, ffn=40, channels=4, text_width=24, text_tokens=7, time_features=32
)
WORLD = MODELS["wan-tiny-world"]
CPU = torch.device("cpu")
PLACE = dict(device=CPU, dtype=torch.float32)
SIZE = (4, 6)
TINY = MODELS["wan-tiny"]
TURN = math.radians(10)
TURNING = (math.cos(TURN), 0, math.sin(TURN), 0.3, 0, 1, 0, 0, -math.sin(TURN), 0, math.cos(TURN), 0.1)
"""A turn to the right with a step aside and ahead."""


def injectors(conditions: ConditionsConfig = WORLD.conditions) -> Injectors:
    torch.manual_seed(0)
    return shaken(Injectors(conditions, DIT))


def random_weights() -> dict[str, torch.Tensor]:
    return dict(load_dit(TINY, ["random:3"], **PLACE).named_parameters())


def acting(*keys: tuple[str, ...], look: tuple[float, float] = (0, 0)) -> list[FrameConditions]:
    return [FrameConditions(actions=FrameActions(keys=each, look=look)) for each in keys]


def filmed(*motions: tuple[float, ...]) -> list[FrameConditions]:
    return [FrameConditions(camera=CameraMotion(motion=motion)) for motion in motions]


def test_a_vector_has_a_place_for_each_key_for_the_look_and_for_axes() -> None:
    config = ActionsConfig(keys=("a", "w"), look=True, axes=2)
    frames = [
        FrameActions(keys=("space", "w"), look=(90.0, -22.5), axes=(0.5,)),
        FrameActions(keys=("a", "w"), axes=(0.1, -0.2, 0.3)),
    ]
    assert action_vectors(frames, config).tolist() == [
        [0, 1, 2, -0.5, 0.5, 0],
        pytest.approx([1, 1, 0, 0, 0.1, -0.2]),
    ]


@torch.inference_mode()
def test_idle_hands_and_a_camera_at_rest_enter_nothing_and_would_add_exactly_nothing() -> None:
    made = injectors()
    idle = [FrameConditions(actions=FrameActions(), camera=CameraMotion())] * 3
    assert made.entries(idle, SIZE) == NO_ENTRIES
    assert made.entries((), SIZE) == NO_ENTRIES
    assert made.entries(acting(("space",), (), ()), SIZE).is_empty, "a key that the model does not know"
    computed = made(torch.zeros(1, 3, 7), ray_changes([CameraMotion()] * 3, SIZE)[None])
    assert all(torch.count_nonzero(entry) == 0 for entry in (computed.time_BFD, computed.patch_BFTD))


@torch.inference_mode()
def test_an_untrained_injector_adds_nothing_whatever_is_held() -> None:
    made = Injectors(WORLD.conditions, DIT)
    entries = made.entries(acting(("w",)) + filmed(TURNING), SIZE)
    assert torch.count_nonzero(entries.time_BFD) == 0
    assert torch.count_nonzero(entries.patch_BFTD) == 0


def rays_by_hand(frames: list[CameraMotion], rows: int, columns: int) -> np.ndarray:
    """Two points on each ray, one cell after the other, taken from camera to camera back to the origin; their
    difference is its direction and their cross product its moment."""
    found = np.zeros((len(frames), 6, rows, columns))
    for number in range(len(frames)):
        for y in range(rows):
            for x in range(columns):
                for back, sign in ((False, 1), (True, -1)):
                    fx, fy, cx, cy = frames[number].lens or (1.0, columns / rows, 0.5, 0.5)
                    if back:
                        fx, fy, cx, cy = 1.0, columns / rows, 0.5, 0.5
                    point = np.array([((x + 0.5) / columns - cx) / fx, ((y + 0.5) / rows - cy) / fy, 1.0])
                    near = np.zeros(3)
                    far = point / np.sqrt((point**2).sum())
                    for frame in reversed([] if back else frames[: number + 1]):
                        r = np.array(frame.motion).reshape(3, 4)
                        near, far = r[:, :3] @ near + r[:, 3], r[:, :3] @ far + r[:, 3]
                    found[number, :3, y, x] += sign * np.cross(near, far)
                    found[number, 3:, y, x] += sign * (far - near)
    return found


def test_rays_are_what_two_points_on_each_say() -> None:
    forward = (*STILL[:11], 0.5)
    frames = [
        CameraMotion(motion=TURNING),
        CameraMotion(motion=forward, lens=(0.8, 1.3, 0.4, 0.55)),
        CameraMotion(motion=TURNING),
    ]
    found = ray_changes(frames, SIZE)
    assert found.shape == (3, 6, *SIZE)
    np.testing.assert_allclose(found.numpy(), rays_by_hand(frames, *SIZE), atol=1e-6)
    assert own_lens(SIZE) == (1.0, 1.5, 0.5, 0.5)


@torch.inference_mode()
def test_every_frame_has_its_own_entry_and_a_camera_s_first_motion_counts() -> None:
    made = injectors()
    time = made.entries(acting(("w",), (), ("a",)), SIZE).time_BFD
    assert time.shape == (1, 3, 24)
    assert torch.count_nonzero(time[0, 1]) == 0
    assert not torch.equal(time[0, 0], time[0, 2])
    first = made.entries(filmed(TURNING, STILL, STILL), SIZE).patch_BFTD
    assert first.shape == (1, 3, 6, 24)
    assert torch.count_nonzero(first[0, 0]) > 0
    torch.testing.assert_close(first[0, 0], first[0, 2])


@torch.inference_mode()
def test_equal_conditions_are_computed_once_and_what_is_remembered_is_bounded() -> None:
    made = injectors()
    held = made.entries(acting(("w",)), SIZE).time_BFD
    assert made.entries(acting(("w",)), SIZE).time_BFD is held
    for turn in range(KEPT_ACTIONS + 5):
        made.entries(acting((), look=(float(turn + 1), 0)), SIZE)
        made.entries(filmed((*STILL[:11], 1.0 + turn)), SIZE)
    assert len(made._kept) == KEPT_ACTIONS + KEPT_CAMERAS
    assert made.entries(acting(("w",)), SIZE).time_BFD is not held
    torch.testing.assert_close(made.entries(acting(("w",)), SIZE).time_BFD, held)


def test_entries_of_rows_and_of_frames_are_zero_where_there_are_none() -> None:
    time = torch.randn(1, 3, 8)
    patch = torch.randn(1, 3, 1, 8)
    joined = join_rows([Entries(time_BFD=time), NO_ENTRIES, Entries(patch_BFTD=patch)])
    assert joined.channels_BFCYX is None
    assert torch.equal(joined.time_BFD, torch.cat([time, torch.zeros(2, 3, 8)]))
    assert torch.equal(joined.patch_BFTD, torch.cat([torch.zeros(2, 3, 1, 8), patch]))
    one_after_the_other = join_frames([Entries(time_BFD=time), NO_ENTRIES], (3, 2))
    assert torch.equal(one_after_the_other.time_BFD, torch.cat([time, torch.zeros(1, 2, 8)], dim=1))
    many = torch.randn(1, 2, 5, 8)
    spread = join_frames([Entries(patch_BFTD=patch), Entries(patch_BFTD=many)], (3, 2)).patch_BFTD
    assert torch.equal(spread[:, :3], patch.expand(1, 3, 5, 8))
    assert torch.equal(spread[:, 3:], many)
    assert join_rows([NO_ENTRIES, NO_ENTRIES]) == NO_ENTRIES


@torch.inference_mode()
def test_a_dit_s_entries_move_the_frames_that_they_are_of_and_channels_need_a_place() -> None:
    def flow(entries: Entries, config: DiTConfig = DIT) -> torch.Tensor:
        model = dit(config)
        memory = ring(config, (2, 3), 3)
        memory.place([0, 1, 2])
        torch.manual_seed(5)
        latents = torch.randn(1, 3, 4, *SIZE)
        cross = model.read_prompt(torch.randn(1, 7, 24))
        return model(latents, torch.full((1, 3), 700.0), memory, cross, entries)

    plain = flow(NO_ENTRIES)
    for entries in (
        Entries(time_BFD=torch.randn(1, 3, 24)),
        Entries(patch_BFTD=torch.randn(1, 3, 6, 24)),
        Entries(patch_BFTD=torch.randn(1, 3, 1, 24)),
    ):
        assert not torch.allclose(flow(entries), plain, atol=1e-3)
    beside = DiTConfig(**{name: getattr(DIT, name) for name in DIT.__slots__} | {"entry_channels": 2})
    without = flow(NO_ENTRIES, beside)
    assert torch.equal(flow(Entries(channels_BFCYX=torch.zeros(1, 3, 2, *SIZE)), beside), without)
    assert not torch.allclose(flow(Entries(channels_BFCYX=torch.randn(1, 1, 2, *SIZE)), beside), without)
    with pytest.raises(AssertionError, match="no place for them"):
        flow(Entries(channels_BFCYX=torch.zeros(1, 3, 2, *SIZE)))


def test_injectors_in_a_file_say_what_they_take_and_come_back(tmp_path: Path) -> None:
    made = load_model_injectors(WORLD, ["random:3"], **PLACE)
    assert all(torch.count_nonzero(weight) > 0 for weight in made.parameters()), "tests would see nothing"
    path = tmp_path / FILE
    save_injectors(path, made, torch.float32)
    with safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == [
            "injectors.actions.down.weight",
            "injectors.actions.up.weight",
            "injectors.camera.rays.weight",
        ]
        assert json.loads(file.metadata()["conditions"])["actions"]["keys"] == ["a", "d", "s", "w"]
    for where in (path, tmp_path):
        spec = described(find_model("wan-tiny"), ["elsewhere", str(where)])
        assert spec.conditions == WORLD.conditions == conditions_in(where)
        found = load_model_injectors(spec, [str(where)], **PLACE)
        for (name, weight), (_, expected) in zip(
            found.named_parameters(), made.named_parameters(), strict=True
        ):
            assert torch.equal(weight, expected), name
        assert locate([where]).injectors == path


def test_brook_has_its_injectors_in_its_one_file_or_in_a_file_of_their_own(tmp_path: Path) -> None:
    conditions = ConditionsConfig(actions=ActionsConfig(keys=("a", "w"), look=True))
    spec = replace(SMALL_BROOK, conditions=conditions)
    parts = build(spec, SMALL_BROOK.text.vocabulary)
    for part, module in parts.named():
        fill_random(module, seed=len(part), **PLACE)
    words = tuple(f"word{number}" for number in range(SMALL_BROOK.text.vocabulary))
    whole = tmp_path / "brook.safetensors"
    plain = tmp_path / "plain.safetensors"
    save_bundle(whole, parts, words, {}, torch.float32)
    save_bundle(plain, parts._replace(injectors=None), words, {}, torch.float32)
    save_injectors(tmp_path / FILE, parts.injectors, torch.float32)
    assert described(SMALL_BROOK, [str(plain)]) == SMALL_BROOK
    fingerprints = set()
    for weights in ([str(whole)], [str(plain), str(tmp_path / FILE)]):
        found = described(SMALL_BROOK, weights)
        assert found == spec
        fingerprints.add(load_model(found, weights, **PLACE).fingerprint())
    assert len(fingerprints) == 1
    assert load_model(SMALL_BROOK, [str(plain)], **PLACE).injectors.is_empty


def test_a_folder_s_injectors_go_along_when_it_is_converted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_dit(source, TINY, random_weights(), "millstream", source="test")
    save_injectors(source / FILE, load_model_injectors(WORLD, ["random:3"], **PLACE), torch.float32)
    convert(source, tmp_path / "target")
    assert (tmp_path / "target" / FILE).read_bytes() == (source / FILE).read_bytes()
    assert conditions_in(tmp_path / "target") == WORLD.conditions


def test_injectors_that_are_missing_or_of_another_model_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights for the injectors of wan-tiny-world; give the file"):
        load_model_injectors(WORLD, [str(tmp_path)], **PLACE)
    save_injectors(tmp_path / FILE, injectors(), torch.float32)
    with pytest.raises(WeightsError, match=r"does not fit this model's injectors: actions\.up\.weight"):
        load_model_injectors(WORLD, [str(tmp_path)], **PLACE)
    fewer = Injectors(ConditionsConfig(actions=ActionsConfig(keys=("a",))), WORLD.dit)
    save_injectors(tmp_path / "fewer.safetensors", fewer, torch.float32)
    with pytest.raises(WeightsError, match=r"camera\.rays\.weight"):
        load_injectors(tmp_path / "fewer.safetensors", Injectors(WORLD.conditions, WORLD.dit), **PLACE)


def test_a_model_is_known_by_its_injectors_too() -> None:
    plain, world, other = (
        load_model(find_model(name), [f"random:{seed}"], **PLACE)
        for name, seed in (("wan-tiny", 3), ("wan-tiny-world", 3), ("wan-tiny-world", 3))
    )
    assert plain.injectors.conditions == NO_CONDITIONS
    assert world.fingerprint() == other.fingerprint() != plain.fingerprint()
    with torch.no_grad():
        other.injectors.camera.rays.weight[0, 0] += 1
    assert world.fingerprint() != other.fingerprint()
    for part in ("dit", "vae", "text"):
        assert world.records(part) == plain.records(part), "but for them it is the same model"
