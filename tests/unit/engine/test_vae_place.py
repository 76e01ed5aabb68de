"""A VAE on devices of its own gives the pictures it gives at home, and what it cannot do is refused before it
is loaded."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from millstream.core.errors import ConfigError, SnapshotError
from millstream.core.speed import PLAIN, Speed
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import differences
from millstream.session.feed import LiveFeed
from tests.unit.commands.test_cli import TINY, millstream
from tests.unit.models_for_tests import SMALL, pictures, tiny_engine
from tests.unit.session.test_session import moving_square

pytestmark = pytest.mark.slow


def split_engine(tiles: int = 2, speed: Speed = PLAIN) -> Engine:
    return Engine(
        "wan-tiny",
        weights="random:3",
        device="cpu",
        dtype="float32",
        vae_devices=["cpu"] * tiles,
        speed=speed,
    )


def test_pictures_that_several_devices_share_are_the_same_to_rounding() -> None:
    found = pictures(split_engine(4, Speed(decoder=True)))
    expected = pictures(tiny_engine())
    assert found.std() > 1, "there is something to see"
    assert abs(found - expected).max() <= 1


def test_a_device_of_its_own_changes_no_bit() -> None:
    assert np.array_equal(pictures(split_engine(1)), pictures(tiny_engine()))


def test_an_input_and_decoded_anchors_go_through_it_too() -> None:
    changes = dict(frames=list(moving_square(60)), noise_scale=0.4, anchor="decoded")
    assert abs(pictures(split_engine(), **changes) - pictures(tiny_engine(), **changes)).max() <= 1


def test_a_saved_session_goes_on_over_as_many_tiles_and_is_refused_over_others(tmp_path: Path) -> None:
    engine = split_engine(4, Speed(decoder=True))
    path = tmp_path / "saved.safetensors"
    fingerprint = engine.fingerprint()
    assert fingerprint == tiny_engine().fingerprint(), "the weights are the same, wherever they are"
    frames = list(moving_square(45))  # 9 for the first chunk, then 12 for each
    session = engine.session("sea", frames=frames, noise_scale=0.4, **SMALL)
    list(session.stream(2))
    snapshot.write(snapshot.capture(engine, session, fingerprint), path)
    expected = [chunk.frames for chunk in session.stream(2)]
    feed = LiveFeed((16, 32))
    for frame in frames[21:]:
        feed.push(frame)
    again = snapshot.revive(snapshot.read(path, engine, fingerprint), engine, "again", feed=feed)
    assert all(
        np.array_equal(*pair)
        for pair in zip((chunk.frames for chunk in again.stream(2)), expected, strict=True)
    )
    with pytest.raises(SnapshotError, match="decoder"):
        snapshot.read(path, tiny_engine(), fingerprint)


def test_a_picture_too_small_for_the_tiles_is_refused_when_a_session_begins() -> None:
    with pytest.raises(ConfigError, match="2x4 latent cells do not make 5 tiles"):
        split_engine(5).session("sea", height=16, width=32, window=6)


def test_a_journal_tells_over_how_many_devices_pictures_were_split() -> None:
    engine = split_engine()
    header = engine.journal_header(engine.stream_config(), "session")
    assert differences(tiny_engine(), header) == ["vae_strips: 2 then, 1 now"]


def test_the_command_line_splits_pictures_and_the_clip_is_the_same(tmp_path: Path) -> None:
    asked = [*TINY, "--chunks", 2, "--out"]
    assert millstream("generate", *asked, tmp_path / "whole")[0] == 0
    assert millstream("generate", *asked, tmp_path / "split", "--vae-devices", "cpu,cpu")[0] == 0
    assert len(list((tmp_path / "split").glob("*.png"))) == 21
    assert abs(read_frames(tmp_path / "split") - read_frames(tmp_path / "whole")).max() <= 1


def read_frames(folder: Path) -> np.ndarray:
    found = []
    for path in sorted(folder.glob("*.png")):
        with av.open(str(path)) as container:
            found += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(found).astype(np.int16)


MISTAKES = {
    "unknown": (["--vae-devices", "tpu"], "use auto, cpu, cuda or cuda:N"),
    "absent": (["--vae-devices", "cpu,cuda:77"], "use --vae-devices cpu"),
    "empty": (["--vae-devices", ""], "use auto, cpu, cuda or cuda:N"),
    "more tiles than cells": (
        ["--vae-devices", ",".join(["cpu"] * 7)],
        "2x4 latent cells do not make 7 tiles",
    ),
    "a VAE that has no tiles": (["--model", "brook", "--vae-devices", "cpu,cpu"], "give it one device"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_in_one_line_before_anything_is_loaded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("millstream.engine.engine.load_model", loaded)
    asked, fix = MISTAKES[name]
    code, _, errors = millstream("generate", *TINY, *asked, "--out", tmp_path / "clip.mp4")
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert fix in errors
    assert not list(tmp_path.iterdir())


def test_a_server_refuses_the_same_before_it_listens(tmp_path: Path) -> None:
    model = ["--model", "wan-tiny", "--weights", "random", "--data", tmp_path / "data"]
    for asked, fix in (
        ("cuda:77", "use --vae-devices cpu"),
        (",".join(["cpu"] * 99), "latent cells do not make 99 tiles"),
    ):
        code, _, errors = millstream("serve", *model, "--vae-devices", asked)
        assert (code, len(errors.strip().splitlines())) == (2, 1), errors
        assert fix in errors
    assert not list(tmp_path.iterdir())
