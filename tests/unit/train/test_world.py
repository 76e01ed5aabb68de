"""The painted world: the same seed paints the same clips, they never run empty, and captions tell the
truth."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.train.data import vocabulary
from millstream.train.data.captions import LEFT_OUT, WORDS, canonical_captions, captions, mentioned
from millstream.train.data.motion import camera_travel, places
from millstream.train.data.preview import GUTTER, contact_sheet
from millstream.train.data.render import FPS, render, view_of
from millstream.train.data.scene import Scenes, attributes, sample_scenes, shown
from millstream.train.data.stamp import draw_things
from millstream.train.data.vocabulary import COLOURS, MOTIONS, SETTINGS, THINGS, TIMES, WEATHERS, Combination
from millstream.train.finetune.dataset import ClipSet

pytestmark = pytest.mark.slow

SMALL = (64, 64)


def same(first: Scenes, second: Scenes) -> bool:
    return all(
        torch.equal(getattr(first, field.name), getattr(second, field.name)) for field in fields(Scenes)
    )


def test_a_scene_does_not_depend_on_how_many_are_drawn() -> None:
    many = sample_scenes(40, seed=3)
    assert len(many) == 40
    assert same(many[:7], sample_scenes(7, seed=3))
    assert same(many[30:], sample_scenes(10, seed=3, start=30))
    assert not same(many, sample_scenes(40, seed=4))


def test_a_scene_shows_what_either_of_its_things_is() -> None:
    scenes = sample_scenes(200, seed=11)
    found = shown(scenes)
    for row in range(len(scenes)):
        things = {int(scenes.thing[row])} | ({int(scenes.thing2[row])} if scenes.second[row] else set())
        assert set(found["thing"][row].nonzero().flatten().tolist()) == things
        assert found["setting"][row].nonzero().flatten().tolist() == [int(scenes.setting[row])]
    assert scenes.second.any()


def test_attributes_are_those_of_the_first_thing() -> None:
    scenes = sample_scenes(50, seed=0)
    found = attributes(scenes)
    assert set(found) == {"setting", "time", "weather", "thing", "colour", "motion"}
    assert torch.equal(found["thing"], scenes.thing)


def test_every_value_occurs_and_only_what_goes_together() -> None:
    scenes = sample_scenes(5000, seed=1, held_out=None)
    for name, names in (
        ("setting", SETTINGS),
        ("time", TIMES),
        ("weather", WEATHERS),
        ("thing", THINGS),
        ("colour", COLOURS),
    ):
        assert getattr(scenes, name).bincount(minlength=len(names)).min() > 50, name
    for thing, motion in zip(scenes.thing.tolist(), scenes.motion.tolist(), strict=True):
        assert MOTIONS[motion] in vocabulary.motions_of(THINGS[thing])
    assert set(drawn(scenes)) | set(drawn_second(scenes)) <= set(vocabulary.combinations())
    assert 0.25 < scenes.second.float().mean() < 0.4


def drawn(scenes: Scenes) -> list[Combination]:
    columns = (scenes.setting, scenes.time, scenes.weather, scenes.thing, scenes.colour)
    return [Combination(*row) for row in torch.stack(columns, 1).tolist()]


def drawn_second(scenes: Scenes) -> list[Combination]:
    columns = (scenes.setting, scenes.time, scenes.weather, scenes.thing2, scenes.colour2)
    return [Combination(*row) for row in torch.stack(columns, 1)[scenes.second].tolist()]


def test_held_out_combinations_are_few_and_never_trained_on() -> None:
    rows = vocabulary.combinations()
    assert 0.04 < sum(map(vocabulary.is_held_out, rows)) / len(rows) < 0.06
    training = sample_scenes(4000, seed=5)
    assert not any(map(vocabulary.is_held_out, drawn(training) + drawn_second(training)))
    assert all(map(vocabulary.is_held_out, drawn(sample_scenes(1000, seed=5, held_out=True))))
    either = [vocabulary.is_held_out(row) for row in drawn(sample_scenes(4000, seed=5, held_out=None))]
    assert 0.03 < sum(either) / len(either) < 0.08


def test_things_keep_to_their_places() -> None:
    assert "boat" not in vocabulary.things_of("desert", "day")
    assert "comet" not in vocabulary.things_of("hills", "day")
    assert set(vocabulary.weathers_of("space", "night")) == {"clear", "aurora"}
    assert "aurora" not in vocabulary.weathers_of("sea", "day")
    assert "snow" not in vocabulary.weathers_of("desert", "night")


def test_clips_have_their_shape_and_range() -> None:
    clips = render(sample_scenes(24, seed=2), frames=3, size=(48, 80))
    assert clips.shape == (24, 3, 3, 48, 80)
    assert clips.dtype == torch.float32
    assert clips.min() >= -1
    assert clips.max() <= 1
    assert clips.flatten(1).std(dim=1).min() > 0.02, "a clip is nearly blank"


def test_the_same_seed_paints_the_same_pictures() -> None:
    first, second = (render(sample_scenes(12, seed=9), frames=2, size=SMALL) for _ in range(2))
    assert torch.equal(first, second)


def test_a_clip_can_be_continued() -> None:
    scenes = sample_scenes(12, seed=6)
    whole = render(scenes, frames=9, size=SMALL)
    parts = torch.cat(
        (render(scenes, frames=4, size=SMALL), render(scenes, start=4, frames=5, size=SMALL)), dim=1
    )
    assert (whole - parts).abs().max() < 2e-4  # products of matrices round by their shape


def test_a_clip_does_not_depend_on_its_neighbours() -> None:
    scenes = sample_scenes(12, seed=6)
    together = render(scenes, frames=2, size=SMALL)
    for i in range(0, 12, 3):
        alone = render(scenes[i : i + 1], frames=2, size=SMALL)
        assert (together[i : i + 1] - alone).abs().max() < 2e-4


def test_half_precision_pictures_are_the_same_pictures() -> None:
    scenes = sample_scenes(6, seed=8)
    full = render(scenes, frames=1, size=SMALL)
    half = render(scenes, frames=1, size=SMALL, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert (full - half.float()).abs().max() < 0.03


def test_at_every_moment_of_two_minutes_a_thing_is_in_the_picture() -> None:
    scenes = sample_scenes(1500, seed=12, held_out=None)
    time_T = torch.arange(0, 120, 0.5)
    best = torch.zeros(len(scenes), len(time_T))
    for place in places(scenes, time_T):
        across = ((place.x + place.half).clamp(max=1) - (place.x - place.half).clamp(min=0)).clamp(min=0)
        down = ((place.y + place.half).clamp(max=1) - (place.y - place.half).clamp(min=0)).clamp(min=0)
        best = torch.maximum(best, across * down / (2 * place.half).square() * place.there)
    assert best.min() > 0.85, f"scene {int(best.min(1).values.argmin())} runs empty"


def thing_coverage(scenes: Scenes, *, frames: int, size: tuple[int, int], fps: float) -> Tensor:
    """Render how far things cover each pixel, 0 to 1: [B, T, H, W]. Where nothing is drawn, black stays black
    and white white."""
    view, time_T = view_of(scenes, 0, frames, size, fps)
    black = torch.zeros(len(view), 3, *size)
    white = torch.ones(len(view), 3, *size)
    for canvas in (black, white):
        draw_things(canvas, scenes, view, time_T)
    return (1 - (white - black))[:, 0].view(len(scenes), frames, *size)


def test_what_is_in_the_picture_is_painted() -> None:
    """Rendered, once a second for two minutes: the covered area never falls far below its usual size."""
    scenes = sample_scenes(24, seed=13)
    covered = thing_coverage(scenes, frames=120, size=(32, 32), fps=1.0).sum(dim=(2, 3))
    assert (covered > 0.6 * covered.median(dim=1, keepdim=True).values).all()
    assert covered.min() > 6


def test_nothing_jumps() -> None:
    """Between neighbouring frames few pixels change much, at the start and an hour in."""
    scenes = sample_scenes(36, seed=14)
    for start in (0, 3600 * int(FPS)):
        clips = render(scenes, start=start, frames=5, size=SMALL)
        change = (clips[:, 1:] - clips[:, :-1]).abs().mean(dim=(2, 3, 4))
        assert change.max() < 0.13


def test_things_and_camera_move_smoothly_through_their_turns() -> None:
    scenes = sample_scenes(400, seed=15)
    time_T = torch.arange(0, 40 * FPS) / FPS
    assert camera_travel(scenes, time_T).diff(dim=1).abs().min() > 0, "the camera never stops"
    found = places(scenes, time_T)
    # What is seen now was close by one frame ago, perhaps as the other one of its procession.
    for pair in (found[:2], found[2:]):
        where = torch.stack([torch.stack((place.x, place.y), -1) for place in pair])
        seen = torch.stack(
            [place.there & (place.y > -place.half) & (place.y < 1 + place.half) for place in pair]
        )
        nearest = (where[:, None, :, 1:] - where[None, :, :, :-1]).norm(dim=-1).amin(dim=1)
        assert nearest[seen[:, :, 1:]].max() < 0.03


def test_times_of_day_and_weathers_look_different() -> None:
    scenes = sample_scenes(300, seed=16)
    light = render(scenes, frames=1, size=(32, 32)).mean(dim=(1, 2, 3, 4))
    land = scenes.setting != SETTINGS.index("space")
    by_time = [light[land & (scenes.time == i)].mean().item() for i in range(len(TIMES))]
    assert by_time[TIMES.index("night")] < by_time[TIMES.index("dusk")] < by_time[TIMES.index("day")]
    assert by_time[TIMES.index("dusk")] < by_time[TIMES.index("dawn")]


def test_captions_use_known_words_and_tell_the_truth() -> None:
    scenes = sample_scenes(3000, seed=17, held_out=None)
    said = captions(scenes, seed=1)
    assert len(WORDS) < 300
    assert list(WORDS) == sorted(set(WORDS))
    assert {word for caption in said for word in caption.replace(",", "").split()} <= set(WORDS)
    assert len(set(said)) > 2900
    counts = dict.fromkeys(("time", "weather", "colour", "size", "motion", "speed"), 0)
    alone = 0
    for i, caption in enumerate(said):
        meant = mentioned(caption)
        assert {"setting", "thing"} <= set(meant), caption
        if scenes.second[i]:
            both = {
                name: {int(getattr(scenes, name)[i]), int(getattr(scenes, f"{name}2")[i])}
                for name in ("thing", "colour")
            }
            assert all(set(meant.get(name, ())) <= ids for name, ids in both.items()), caption
            continue
        assert all(values == (getattr(scenes, name)[i],) for name, values in meant.items()), caption
        alone += 1
        for name in counts:
            counts[name] += name not in meant
    assert all(abs(count / alone - LEFT_OUT) < 0.03 for count in counts.values()), counts


def test_captions_repeat_by_seed_and_plain_ones_say_everything() -> None:
    scenes = sample_scenes(50, seed=18)
    assert captions(scenes, seed=2)[:20] == captions(scenes[:20], seed=2)
    assert captions(scenes, seed=2) != captions(scenes, seed=3)
    for i, caption in enumerate(canonical_captions(scenes)):
        meant = mentioned(caption)
        assert len(meant) == 8, caption
        seconds = (
            [int(getattr(scenes, f"{name}2")[i]) for name in ("thing", "colour", "size")]
            if scenes.second[i]
            else []
        )
        assert [
            values[1] for values in (meant["thing"], meant["colour"], meant["size"]) if len(values) > 1
        ] == seconds, caption
        assert all(values[0] == getattr(scenes, name)[i] for name, values in meant.items()), caption
        assert set(caption.split()) <= set(WORDS)


def test_a_contact_sheet_has_a_row_a_scene() -> None:
    sheet = contact_sheet(sample_scenes(3, seed=0), columns=2, seconds=1, size=SMALL)
    assert sheet.dtype == np.uint8
    assert sheet.shape == (3 * (64 + GUTTER) + GUTTER, 2 * (64 + GUTTER) + GUTTER, 3)


def millstream(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_preview_writes_a_sheet_a_clip_and_captions(tmp_path: Path) -> None:
    asked = (
        "--preview",
        "--out",
        tmp_path / "data",
        "--count",
        3,
        "--seconds",
        1.5,
        "--size",
        "32x48",
        "--held-out",
    )
    code, said, _ = millstream("train", "data", "world", *asked)
    assert code == 0
    assert said.split() == [
        str(tmp_path / "data" / name) for name in ("sheet.png", "clip.mp4", "captions.txt")
    ]
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"sheet.png", "clip.mp4", "captions.txt"}
    with av.open(str(tmp_path / "data" / "clip.mp4")) as container:
        assert len(list(container.decode(video=0))) == 24
    assert (tmp_path / "data" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "data" / "captions.txt").read_text().splitlines()) == 3
    code, _, errors = millstream("train", "data", "world", *asked)
    assert code == 2
    assert "--overwrite" in errors
    assert millstream("train", "data", "world", *asked, "--overwrite")[0] == 0


@pytest.mark.slow
def test_videos_of_the_world_are_data_for_a_recipe(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    clips = tmp_path / "clips"
    asked = ("--videos", "--out", videos, "--count", 3, "--seconds", 1.5, "--size", "64x96", "--seed", 4)
    code, said, _ = millstream("train", "data", "world", *asked)
    assert (code, said.strip()) == (
        0,
        f"{videos}: 3 videos with captions; next: millstream train data prepare {videos}",
    )
    lines = captions(sample_scenes(3, seed=4), seed=4)
    assert [(videos / f"000{number}.txt").read_text().strip() for number in range(3)] == lines
    prepare = ("--out", clips, "--frames", 6, "--sizes", "64x96", "--device", "cpu")
    assert millstream("train", "data", "prepare", videos, *prepare)[0] == 0
    assert [clip.caption for clip in ClipSet(clips).clips] == lines
    (tmp_path / "r.toml").write_text(
        'model = "brook"\nweights = ["bundled"]\ndata = "clips"\nsteps = 1\nbatch = 1\nlr = 1e-4\n[lora]\nrank = 2\n'
    )
    assert millstream("train", tmp_path / "r.toml", "--device", "cpu")[0] == 0
    assert (tmp_path / "r" / "lora.safetensors").exists()


def test_without_preview_it_says_what_the_data_is() -> None:
    code, said, _ = millstream("train", "data", "world")
    assert code == 0
    assert "held out" in said
    assert str(len(vocabulary.combinations())) in said


MISTAKES = {
    "none": (["--count", 0], "from 1 to"),
    "no time": (["--seconds", 0], "--seconds"),
    "odd size": (["--size", "30x30"], "multiples of 16"),
    "size in words": (["--size", "big"], "HEIGHTxWIDTH"),
    "negative seed": (["--seed", -1], "0 or more"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    arguments, fix = MISTAKES[name]
    code, _, errors = millstream(
        "train", "data", "world", "--preview", "--out", tmp_path / "data", *arguments
    )
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert errors.startswith("error: ")
    assert fix in errors
    assert list(tmp_path.iterdir()) == []


def test_a_preview_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, errors = millstream("train", "data", "world", "--preview", "--out", tmp_path / "file")
    assert code == 2
    assert "not a folder" in errors
