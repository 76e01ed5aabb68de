"""A model with Wan 2.2's VAE streams, begins from a picture within its first chunk, and is kept and repeated
exactly."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from millstream.core.conditions import Picture
from millstream.core.config import VAEConfig
from millstream.core.controls import SetImage, SetPrompt
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.core.speed import Speed
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.engine.speed_choice import fitting_speed
from millstream.engine.vae_place import refuse_split
from millstream.models.fast.apply import accelerate
from millstream.models.registry import load_model
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.wan.tiny_decoder import load_tiny_decoder
from millstream.ops.pictures import to_pictures
from millstream.ops.pixels import from_bytes
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.session import Session

SIZE = (64, 96)
SPEC = MODELS["wan22-tiny"]
CPU = torch.device("cpu")


@cache
def engine() -> Engine:
    return Engine("wan22-tiny", weights="random:3", device="cpu", dtype="float32")


def picture() -> Picture:
    pixels = np.random.default_rng(0).integers(0, 256, (1, *SIZE, 3), dtype=np.uint8)
    return Picture.of(pixels.tobytes(), height=SIZE[0], width=SIZE[1], num_frames=1)


def begun(**more: object) -> Session:
    session = engine().session("sea", height=SIZE[0], width=SIZE[1], **more)
    session.control(SetImage(picture=picture()))
    return session


def digests(session: Session, chunks: int) -> list[str]:
    return [chunk.digest for chunk in session.stream(chunks)]


@pytest.mark.slow
def test_it_streams_pictures_of_16_pixels_a_cell() -> None:
    with engine().session("sea", height=SIZE[0], width=SIZE[1]) as session:
        first, second = session.stream(2)
    assert first.frames.shape == (9, *SIZE, 3)
    assert second.frames.shape == (12, *SIZE, 3)
    assert first.frames.std() > 1, "there is something to see"


@pytest.mark.slow
def test_its_picture_is_the_first_frame_of_the_first_chunk() -> None:
    """The chunk has 9 frames as any first one, and the first of them is the picture after the VAE."""
    with begun() as session:
        plan = session.decide()
        assert plan is not None
        assert (plan.envelope.given_frames, plan.envelope.start_frame, plan.envelope.stride) == (1, 0, 16)
        parcel = session.prepare(plan)
        assert parcel.latents_in.shape == (1, 3, 6, 4, 6)
    vae = engine().model.vae
    frames = torch.frombuffer(bytearray(picture().pixels()), dtype=torch.uint8).view(1, *SIZE, 3)
    with torch.inference_mode():
        latents, _ = vae.encode(from_bytes(frames.permute(0, 3, 1, 2))[None])
        expected, _ = vae.decode(latents)
    assert torch.equal(parcel.latents_in[:, :1], latents)
    with begun() as session:
        (chunk,) = session.stream(1)
    assert len(chunk.frames) == 9
    assert abs(chunk.frames[:1].astype(int) - to_pictures(expected[0]).numpy()).max() <= 1


@pytest.mark.slow
def test_a_stream_from_a_picture_is_repeated_to_the_bit_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    config = engine().stream_config(height=SIZE[0], width=SIZE[1])
    with JournalWriter(path, engine().journal_header(config, "session")) as writer:
        session = engine().session("sea", config=config, journal=writer, session_id="s")
        with session:
            session.control(SetImage(picture=picture()))
            made = digests(session, 2)
            session.control(SetPrompt(prompt="storm", mode="recompute"))
            made += digests(session, 2)
    journal = read_journal(path)
    assert journal.header.config.stride == 16
    assert [line.digest for line in journal.chunks] == made
    assert all(again.identical for again in replay(engine(), journal))


@pytest.mark.slow
def test_a_saved_stream_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "saved.safetensors"
    fingerprint = engine().model.fingerprint()
    with begun() as session:
        digests(session, 2)
        snapshot.write(snapshot.capture(engine(), session, fingerprint), path)
        expected = [chunk.frames for chunk in session.stream(2)]
    with snapshot.revive(snapshot.read(path, engine(), fingerprint), engine(), "again") as again:
        found = [chunk.frames for chunk in again.stream(2)]
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_what_its_vae_has_no_fast_path_for_is_left_plain_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        found = fitting_speed(Speed(blocks=True, decoder=True), SPEC, CPU, torch.float32)
    assert found == Speed(blocks=True)
    (line,) = caplog.messages
    assert "decoder, since the VAE of wan22-tiny has no fast path yet" in line
    model = load_model(SPEC, ("random:3",), device=CPU, dtype=torch.float32)
    assert not isinstance(accelerate(model, Speed(decoder=True)).vae, FastVAE)


def test_tiles_and_tiny_decoders_of_it_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="give it one device with --vae-devices"):
        refuse_split(SPEC)
    with pytest.raises(ConfigError, match="leave the preview decoder out"):
        load_tiny_decoder(Path("taew2_1.pth"), SPEC, device=CPU, dtype=torch.float32)


def test_the_preset_names_a_mean_and_a_spread_for_each_of_48_channels() -> None:
    vae = MODELS["wan2.2-ti2v-5b"].vae
    assert isinstance(vae, VAEConfig)
    assert len(vae.mean) == len(vae.std) == vae.channels == 48
    assert all(0.3 < spread < 2 for spread in vae.std)
    assert all(abs(mean) < 1 for mean in vae.mean)
