"""The world that is walked in: poses follow actions exactly, depth and poses and pixels agree, and the same
seed walks the same walk."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor
from torch.nn.functional import grid_sample
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.train.data.actions_file import KEYS, actions_text, read_actions
from millstream.train.data.captions import WORDS
from millstream.train.data.vocabulary import SETTINGS, THINGS, TIMES, WEATHERS
from millstream.train.data.walk.actions import (
    Actions,
    actions_of,
    held,
    is_held_out_track,
    random_tracks,
    standing,
)
from millstream.train.data.walk.captions import (
    ALL_WORDS,
    NEW_WORDS,
    SIGHTS,
    STEPS,
    TURNS,
    mentioned_of_walk,
    plain_walk_captions,
    walk_attributes,
    walk_captions,
)
from millstream.train.data.walk.clips import walk_clips
from millstream.train.data.walk.noise import place_of
from millstream.train.data.walk.render import LABELS, Rendered, render_walks
from millstream.train.data.walk.scene import EYE, WALK_SETTINGS, Walks, sample_walks, things_at
from millstream.train.data.walk.terrain import height_of
from millstream.train.data.walk.walker import (
    LOOK_SPEED,
    PITCH_LIMIT,
    TURN_SPEED,
    WALK_SPEED,
    Poses,
    action_rows,
    walk,
)

pytestmark = pytest.mark.slow

FPS = 16.0
SMALL = (64, 64)
STILL = ("ground", "tree", "house")
"""Labels of what never moves."""


def walks_in(setting: str, count: int = 1, *, weather: str | None = None, seed: int = 7) -> Walks:
    """Walks of one setting out of a seed's first."""
    walks = sample_walks(80, seed=seed)
    wanted = walks.scenes.setting == SETTINGS.index(setting)
    if weather is not None:
        wanted &= walks.scenes.weather == WEATHERS.index(weather)
    rows = wanted.nonzero()[:count, 0]
    assert len(rows) == count, f"{len(rows)} walks in {setting}, {weather}"
    return walks[rows]


def ground_at(walks: Walks, x: Tensor, z: Tensor) -> Tensor:
    return height_of(place_of(x, z, walks.world, torch.float64), walks.scenes.setting).y.clamp(min=0)


def test_poses_follow_the_actions_exactly() -> None:
    walks = walks_in("desert", 2)
    actions = random_tracks(2, frames=40, seed=4, fps=FPS)
    poses = walk(walks, actions, fps=FPS)
    for row in range(2):
        x, z = float(walks.x[row]), float(walks.z[row])
        yaw, pitch = float(walks.yaw[row]), 0.0
        stopped = 0
        for t in range(40):
            down = {key: bool(actions.keys[row, t, i]) for i, key in enumerate(KEYS)}
            look = actions.look[row, t].tolist()
            yaw += (down["right"] - down["left"]) * TURN_SPEED / FPS + look[0]
            pitch += (down["up"] - down["down"]) * LOOK_SPEED / FPS + look[1]
            pitch = max(-PITCH_LIMIT, min(PITCH_LIMIT, pitch))
            ahead, aside = down["w"] - down["s"], down["d"] - down["a"]
            step = WALK_SPEED / FPS / (math.hypot(ahead, aside) or 1)
            to_x = x + (math.sin(math.radians(yaw)) * ahead + math.cos(math.radians(yaw)) * aside) * step
            to_z = z + (math.sin(math.radians(yaw)) * aside - math.cos(math.radians(yaw)) * ahead) * step
            went = abs(float(poses.x[row, t]) - x) + abs(float(poses.z[row, t]) - z) > 1e-9
            if went or not (ahead or aside):
                x, z = to_x, to_z
            else:
                stopped += 1
            assert poses.x[row, t] == pytest.approx(x, abs=1e-9)
            assert poses.z[row, t] == pytest.approx(z, abs=1e-9)
            assert poses.yaw[row, t] == pytest.approx(yaw, abs=1e-9)
            assert poses.pitch[row, t] == pytest.approx(pitch, abs=1e-9)
        assert stopped < 30, "an open desert stops nobody for long"
    ground = ground_at(walks, poses.x, poses.z)
    assert torch.allclose(poses.y, ground + EYE, atol=1e-9)


def test_a_longer_walk_begins_as_the_shorter_one() -> None:
    walks = walks_in("forest")
    long = walk(walks, random_tracks(1, frames=60, seed=1, fps=FPS), fps=FPS)
    short = walk(walks, random_tracks(1, frames=25, seed=1, fps=FPS), fps=FPS)
    for field in fields(Poses):
        assert torch.equal(getattr(long, field.name)[:, :25], getattr(short, field.name))


def test_water_stops_a_walker_at_the_shore() -> None:
    walks = walks_in("sea", 3)
    poses = walk(walks, held("w", 400, 3), fps=FPS)
    ground = height_of(place_of(poses.x, poses.z, walks.world, torch.float64), walks.scenes.setting).y
    assert ground.min() >= -0.25
    assert (ground[:, -1] < 0.05).any(), "nobody came to the water"
    assert (poses.y >= EYE).all()


def test_walls_stop_a_walker() -> None:
    walks = walks_in("city", 2)
    turned = held("w+right", 24, 2)
    straight = held("w", 200, 2)
    actions = Actions(
        keys=torch.cat((turned.keys, straight.keys), 1), look=torch.cat((turned.look, straight.look), 1)
    )
    poses = walk(walks, actions, fps=FPS)
    way = (poses.x.diff(dim=1).square() + poses.z.diff(dim=1).square()).sqrt()
    assert (way[:, -1] < 1e-9).any(), "nobody met a wall"
    assert ((way - WALK_SPEED / FPS).abs() < 1e-6).logical_or(way < 1e-9).all(), (
        "a step is whole or not taken"
    )


def test_a_walk_does_not_depend_on_how_many_are_drawn() -> None:
    many = sample_walks(12, seed=3)
    part = sample_walks(4, seed=3, start=5)
    for field in fields(Walks):
        if field.name != "scenes":
            assert torch.equal(getattr(many, field.name)[5:9], getattr(part, field.name)), field.name
    assert torch.equal(many.scenes.thing[5:9], part.scenes.thing)
    assert {SETTINGS[i] for i in many.scenes.setting.tolist()} <= set(WALK_SETTINGS)
    assert not torch.equal(many.world, sample_walks(12, seed=4).world)


def test_land_has_no_seam_where_tiles_meet() -> None:
    walks = sample_walks(1, seed=0)
    x = torch.tensor([[5 * 1024.0 - 1e-4, 5 * 1024.0 + 1e-4]], dtype=torch.float64)
    z = torch.full_like(x, -777.25)
    forth = height_of(place_of(x, z, walks.world, torch.float64), walks.scenes.setting)
    back = height_of(place_of(x.flip(1), z, walks.world, torch.float64), walks.scenes.setting)
    assert torch.allclose(forth.y, back.y.flip(1), atol=1e-9)
    assert torch.allclose(forth.dx, back.dx.flip(1), atol=1e-9)


def test_the_slope_is_that_of_the_height() -> None:
    world = torch.tensor([3, 4, 5, 6, 7], dtype=torch.int32)
    setting = torch.arange(5)
    x = torch.rand(5, 200, dtype=torch.float64) * 9000 - 4000
    z = torch.rand(5, 200, dtype=torch.float64) * 9000 - 4000
    places = place_of(x, z, world, torch.float64)
    here = height_of(places, setting)
    east = height_of(places._replace(x=places.x + 1e-4), setting)
    south = height_of(places._replace(z=places.z + 1e-4), setting)
    assert torch.allclose((east.y - here.y) / 1e-4, here.dx, atol=1e-3)
    assert torch.allclose((south.y - here.y) / 1e-4, here.dz, atol=1e-3)


def warped(found: Rendered, row: int, first: int, second: int) -> tuple[Tensor, Tensor, Tensor]:
    """Frame `first` seen again in frame `second` by depth and poses alone: which still pixels both show, how
    much their depths differ (share), and their colours [Y, X]."""
    depth = found.depth[row, first].double()
    height, width = depth.shape
    v, u = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    pixel = torch.stack((u, v, torch.ones_like(u)), dim=-1).double()
    here, there = found.camera_to_world[row, first], found.camera_to_world[row, second]
    camera = pixel @ found.intrinsics.inverse().T * depth[..., None]
    seen = (camera @ here[:, :3].T + here[:, 3] - there[:, 3]) @ there[:, :3]
    place = seen @ found.intrinsics.T
    grid = (place[..., :2] / place[..., 2:]) / torch.tensor([width, height]) * 2 - 1

    def sampled(image: Tensor, mode: str = "bilinear") -> Tensor:
        return grid_sample(image.double()[None], grid[None], mode=mode, align_corners=False)[0]

    again = sampled(found.depth[row, second][None].clamp(max=1e5))[0]
    labels = found.labels[row, first]
    still = torch.stack([labels == LABELS.index(name) for name in STILL]).any(dim=0)
    still &= sampled(found.labels[row, second][None], "nearest")[0] == labels
    still &= (grid.abs() < 0.97).all(dim=-1) & (seen[..., 2] > 0.3)
    colour = (sampled(found.pixels[row, second]) - found.pixels[row, first]).abs().mean(dim=0)
    return still, (again - seen[..., 2]).abs() / seen[..., 2], colour


@pytest.mark.parametrize("setting", ["hills", "desert", "city", "forest"])
def test_depth_poses_and_pixels_agree(setting: str) -> None:
    """A frame's pixels, moved by depth and pose, are those of a frame six steps and a turn later: of four in
    five pixels depth is right to 1%, of half of them to 0.1%; colours differ little. (What one frame hides from
    the other is among the rest.)"""
    walks = walks_in(setting, 2, weather="clear")
    found = render_walks(walks, walk(walks, held("w+right", 7, 2), fps=FPS), size=(96, 96))
    for row in range(2):
        still, depth, colour = warped(found, row, 0, 6)
        assert still.float().mean() > 0.05
        assert depth[still].quantile(0.5) < 1e-3
        assert depth[still].quantile(0.8) < 0.01
        assert colour[still].mean() < 0.06


def test_a_wrong_pose_is_found_out() -> None:
    walks = walks_in("desert", 1, weather="clear")
    found = render_walks(walks, walk(walks, held("w+right", 7), fps=FPS), size=(96, 96))
    found.camera_to_world[:, 6, 1, 3] += 0.1
    still, depth, _ = warped(found, 0, 0, 6)
    assert depth[still].quantile(0.5) > 1e-3


def test_the_ground_below_the_eye_is_as_far_as_the_eye_is_high() -> None:
    walks = walks_in("city")
    found = render_walks(walks, walk(walks, held("down", 21), fps=FPS), start=20, frames=1, size=SMALL)
    place = found.camera_to_world[0, 0]
    ray = found.intrinsics.inverse() @ torch.tensor([32.5, 63.5, 1.0], dtype=torch.float64)
    point = place[:, :3] @ ray * found.depth[0, 0, 63, 32].double() + place[:, 3]
    ground = ground_at(walks, point[None, :1], point[None, 2:])
    assert point[1] == pytest.approx(float(ground), abs=0.02)


def test_the_same_seed_paints_the_same_pictures_and_neighbours_do_not_matter() -> None:
    walks = sample_walks(3, seed=12)
    poses = walk(walks, random_tracks(3, frames=3, seed=12, fps=FPS), fps=FPS)
    together = render_walks(walks, poses, size=SMALL)
    assert torch.equal(together.pixels, render_walks(walks, poses, size=SMALL).pixels)
    for row in range(3):
        one = Poses(**{field.name: getattr(poses, field.name)[row : row + 1] for field in fields(Poses)})
        alone = render_walks(walks[row : row + 1], one, size=SMALL)
        assert (alone.pixels - together.pixels[row : row + 1]).abs().mean() < 1e-4
        assert (alone.labels == together.labels[row : row + 1]).float().mean() > 0.999
    part = render_walks(walks, poses, start=1, frames=2, size=SMALL)
    assert (part.pixels - together.pixels[:, 1:]).abs().mean() < 1e-4


def test_pictures_have_their_shape_and_range() -> None:
    walks = sample_walks(2, seed=5)
    found = render_walks(walks, walk(walks, standing(2, 2), fps=FPS), size=(48, 80), dtype=torch.bfloat16)
    assert found.pixels.shape == (2, 2, 3, 48, 80)
    assert found.pixels.dtype == torch.bfloat16
    assert found.depth.shape == found.labels.shape == (2, 2, 48, 80)
    assert found.masks.shape == (2, 2, 2, 48, 80)
    assert found.camera_to_world.shape == (2, 2, 3, 4)
    assert found.pixels.min() >= -1
    assert found.pixels.max() <= 1
    assert (found.depth > 0).all()
    assert found.depth[found.labels != 0].isfinite().all()
    assert found.depth[found.labels == 0].isinf().all()


def test_clips_have_all_that_a_trainer_wants() -> None:
    clips = walk_clips(2, seed=3, frames=2, size=(32, 32), start=4)
    again = walk_clips(1, seed=3, frames=2, size=(32, 32), start=5)
    assert clips.rendered.pixels.shape == (2, 2, 3, 32, 32)
    assert torch.equal(clips.actions.keys[1:], again.actions.keys)
    assert torch.equal(clips.poses.x[1:], again.poses.x)
    assert torch.equal(
        clips.rendered.camera_to_world[..., 3], torch.stack((clips.poses.x, clips.poses.y, clips.poses.z), 2)
    )
    assert torch.equal(clips.attributes.step[1:], again.attributes.step)


def test_exactly_the_things_asked_for_are_there() -> None:
    walks = sample_walks(12, seed=21)
    found = render_walks(walks, walk(walks, standing(12, 1), fps=FPS), size=SMALL)
    seen = found.masks.flatten(3).float().amax(dim=3)[:, 0] > 128
    assert not seen[:, 1][~walks.scenes.second].any(), "a thing that nobody asked for"
    assert seen[:, 0].float().mean() > 0.9, "most walks begin with a view of their things"
    assert seen[:, 1][walks.scenes.second].float().mean() > 0.9


def test_a_mask_covers_its_things_pixels() -> None:
    """Without the thing only what its mask (or its shadow, which lies on the ground) covers is different."""
    walks = walks_in("desert", 1, weather="clear")
    poses = walk(walks, standing(1, 1), fps=FPS)
    there = render_walks(walks, poses, size=(96, 96))
    away = Walks(
        **{field.name: getattr(walks, field.name) for field in fields(Walks)}
        | {"thing_y": walks.thing_y + 5e3}
    )
    gone = render_walks(away, poses, size=(96, 96))
    changed = (there.pixels - gone.pixels).abs().amax(dim=2)[0, 0] > 0.02
    mask = there.masks[0, 0].amax(dim=0) > 0
    shadow = there.labels[0, 0] == LABELS.index("ground")
    assert mask.sum() > 100
    assert (changed & ~mask & ~shadow).sum() == 0
    assert (changed & mask).sum() > 0.8 * mask.sum()


def test_standing_still_only_what_moves_by_itself_changes() -> None:
    for setting in ("hills", "forest", "city"):
        walks = walks_in(setting, 1, weather="clear")
        # things, and their shadows, are elsewhere
        walks = replace(walks, thing_x=walks.thing_x + 5e3, thing_z=walks.thing_z + 5e3)
        found = render_walks(walks, walk(walks, standing(1, 9), fps=FPS), size=SMALL)
        assert torch.equal(found.camera_to_world[:, 0], found.camera_to_world[:, 8])
        labels = found.labels[0]
        still = torch.stack([labels == LABELS.index(name) for name in STILL]).any(dim=0).all(dim=0)
        moved = (found.pixels[0, 0] - found.pixels[0, 8]).abs().amax(dim=0)
        assert still.float().mean() > 0.2
        # an edge against the sky has some of its clouds in it
        assert (moved[still] > 0.01).float().mean() < 0.02
        assert torch.equal(found.depth[0, 0][still], found.depth[0, 8][still])


def test_things_stay_in_the_world_and_move_as_they_are_said_to() -> None:
    walks = sample_walks(60, seed=2)
    moments = things_at(walks, torch.arange(0, 4, 0.25))
    rises = walks.pair("motion") == 1
    falls = walks.pair("motion") == 2
    climb = moments.y[..., -1] - moments.y[..., 0]
    assert (climb[rises] > 0.1).all()
    assert (climb[falls] < -0.1).all()
    step = (moments.x.diff(dim=-1).square() + moments.z.diff(dim=-1).square()).sqrt()
    comets = (walks.pair("thing") == THINGS.index("comet"))[..., None]
    assert step.masked_fill(comets, 0).max() < 2.0, "nothing jumps"


def test_tracks_are_like_people_and_some_are_held_out() -> None:
    tracks = random_tracks(120, frames=160, seed=9, fps=FPS)
    still = ~tracks.keys.any(dim=2) & (tracks.look == 0).all(dim=2)
    assert 0.15 < still.float().mean() < 0.3
    ahead = tracks.keys[..., KEYS.index("w")].float().mean()
    assert 0.25 < ahead < 0.65
    changes = tracks.keys.int().diff(dim=1).abs().amax(dim=2).float().mean()
    assert changes < 0.15, "keys are held for a while"
    again = random_tracks(3, frames=160, seed=9, fps=FPS, start=40)
    assert torch.equal(tracks.keys[40:43], again.keys)
    kept = random_tracks(30, frames=40, seed=9, fps=FPS, held_out=True)
    assert not torch.equal(kept.keys, tracks.keys[:30, :40])
    share = sum(is_held_out_track(f"0/{row}/0") for row in range(4000)) / 4000
    assert 0.03 < share < 0.07


def test_captions_read_back_their_attributes() -> None:
    walks = sample_walks(40, seed=6)
    actions = random_tracks(40, frames=33, seed=6, fps=FPS)
    labels = torch.randint(0, len(LABELS), (40, 2, 8, 8), dtype=torch.uint8)
    found = walk_attributes(walks, actions, labels, fps=FPS)
    for row, caption in enumerate(plain_walk_captions(walks, found)):
        said = mentioned_of_walk(caption)
        assert said["setting"] == (int(walks.scenes.setting[row]),)
        assert said["thing"][0] == int(walks.scenes.thing[row])
        assert len(said["thing"]) == 1 + int(walks.scenes.second[row])
        assert said["time"] == (int(walks.scenes.time[row]),), TIMES
        assert said["step"] == (int(found.step[row]),), STEPS
        turn = int(found.turn[row])
        assert said.get("turn", (TURNS.index("straight"),)) == (turn,)
        assert said.get("sight", ()) == tuple(found.sight[row].nonzero()[:, 0].tolist()), SIGHTS
    words = {word for line in walk_captions(walks, found, seed=1) for word in line.replace(",", " ").split()}
    assert words <= set(ALL_WORDS)
    assert not set(NEW_WORDS) & set(WORDS)
    assert set(ALL_WORDS) == set(NEW_WORDS) | set(WORDS)
    assert walk_captions(walks, found, seed=1) == walk_captions(walks, found, seed=1)


def test_what_is_done_is_said() -> None:
    walks = sample_walks(4, seed=0)
    nothing = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    for keys, step, turn in (
        ("w", "walking", "straight"),
        ("s+left", "backing", "left"),
        ("d", "sidling", "straight"),
    ):
        found = walk_attributes(walks, held(keys, 16, 4), nothing, fps=FPS)
        assert {STEPS[i] for i in found.step.tolist()} == {step}
        assert {TURNS[i] for i in found.turn.tolist()} == {turn}
    found = walk_attributes(walks, standing(4, 16), nothing, fps=FPS)
    assert {STEPS[i] for i in found.step.tolist()} == {"standing"}


def test_a_file_of_actions_walks_the_same_walk(tmp_path: Path) -> None:
    walks = sample_walks(1, seed=8)
    actions = random_tracks(1, frames=50, seed=8, fps=FPS)
    poses = walk(walks, actions, fps=FPS)
    for suffix in (".csv", ".jsonl"):
        path = tmp_path / f"0000.actions{suffix}"
        path.write_text(actions_text(action_rows(actions, poses, 0), suffix))
        rows = read_actions(path)
        again = actions_of(rows)
        assert torch.equal(again.keys, actions.keys)
        assert torch.equal(again.look, actions.look)
        assert torch.equal(walk(walks, again, fps=FPS).x, poses.x)
        assert rows[-1].pose == tuple(
            float(getattr(poses, name)[0, -1]) for name in ("x", "y", "z", "yaw", "pitch")
        )


def millstream(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_the_preview_of_walks_writes_a_sheet_a_clip_and_captions(tmp_path: Path) -> None:
    options = ("--walk", "--preview", "--count", 2, "--seconds", 0.5, "--size", "32x48", "--out", tmp_path)
    code, output = millstream("train", "data", "world", *options)
    assert code == 0, output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captions.txt", "clip.mp4", "sheet.png"]
    assert len((tmp_path / "captions.txt").read_text().splitlines()) == 2
    with av.open(str(tmp_path / "clip.mp4")) as video:
        assert len(list(video.decode(video=0))) == 8


def test_videos_of_walks_have_captions_and_actions_beside_them(tmp_path: Path) -> None:
    options = ("--walk", "--videos", "--count", 2, "--seconds", 0.25, "--size", "32x32", "--out", tmp_path)
    code, output = millstream("train", "data", "world", *options)
    assert code == 0, output
    assert "captions and actions" in output
    for number in range(2):
        assert (tmp_path / f"{number:04d}.mp4").stat().st_size > 0
        assert mentioned_of_walk((tmp_path / f"{number:04d}.txt").read_text().strip())["setting"]
        rows = read_actions(tmp_path / f"{number:04d}.actions.csv")
        assert rows == read_actions(tmp_path / f"{number:04d}.actions.jsonl")
        assert len(rows) == 4
        assert rows[0].pose is not None
    code, _ = millstream("train", "data", "world", *options)
    assert code == 2, "nothing is replaced unless asked"


def test_without_preview_a_walk_says_its_words() -> None:
    code, output = millstream("train", "data", "world", "--walk")
    assert code == 0
    assert "new words" in output
