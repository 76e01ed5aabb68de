"""The preview decoder: any split gives the same pictures, files in another layout are refused, and latents do
not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from millstream.core.config import ModelSpec
from millstream.core.errors import ConfigError, SnapshotError, WeightsError
from millstream.core.presets import MODELS
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.models.wan.tiny_decoder import TinyDecoder, load_tiny_decoder
from millstream.session.chunk import Chunk
from tests.unit.models_for_tests import SMALL, relative_error, tiny_engine

WIDTHS = (16, 12, 8)
PUBLIC_WIDTHS = (256, 128, 64)
SPEC = MODELS["wan-tiny"]
CHANNELS = 4
CPU = torch.device("cpu")


def layout(widths: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file with these widths, written out as the public files have them."""
    a, b, c = widths
    shapes: dict[str, tuple[int, ...]] = {"1.weight": (a, CHANNELS, 3, 3), "1.bias": (a,)}
    for width, numbers in ((a, (3, 4, 5)), (b, (9, 10, 11)), (c, (15, 16, 17))):
        for number in numbers:
            for place, inputs in ((0, 2 * width), (2, width), (4, width)):
                shapes[f"{number}.conv.{place}.weight"] = (width, inputs, 3, 3)
                shapes[f"{number}.conv.{place}.bias"] = (width,)
    shapes |= {
        "7.conv.weight": (a, a, 1, 1),
        "13.conv.weight": (2 * b, b, 1, 1),
        "19.conv.weight": (2 * c, c, 1, 1),
    }
    shapes |= {"8.weight": (b, a, 3, 3), "14.weight": (c, b, 3, 3), "20.weight": (c, c, 3, 3)}
    return shapes | {"22.weight": (3, c, 3, 3), "22.bias": (3,)}


def tensors(widths: tuple[int, int, int] = WIDTHS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = {}
    for name, shape in layout(widths).items():
        fan_in = max(1, torch.Size(shape).numel() // shape[0])
        made[f"decoder.{name}"] = torch.randn(shape, generator=generator) * fan_in**-0.5
    made["decoder.22.weight"] *= 0.1  # most colours within what can be shown
    return made | {"encoder.0.weight": torch.zeros(2, 3, 3, 3)}


def saved(path: Path, content: dict[str, Tensor]) -> Path:
    torch.save(content, path) if path.suffix == ".pth" else save_file(content, path)
    return path


def loaded(path: Path, spec: ModelSpec = SPEC) -> TinyDecoder:
    return load_tiny_decoder(path, spec, device=CPU, dtype=torch.float32, widths=WIDTHS)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyDecoder:
    return loaded(saved(tmp_path / "taew2_1.pth", tensors()))


def frame_by_frame(latents_TCYX: Tensor) -> Tensor:
    """The layout followed one frame at a time, to the letter: pictures in [0, 1]."""
    w = {name.removeprefix("decoder."): value for name, value in tensors().items()}
    seen: dict[int, Tensor] = {}

    def pair(number: int, x: Tensor) -> Tensor:
        y = torch.cat([x, seen.get(number, torch.zeros_like(x))], dim=1)
        seen[number] = x
        for place in (0, 2, 4):
            y = F.conv2d(y, w[f"{number}.conv.{place}.weight"], w[f"{number}.conv.{place}.bias"], padding=1)
            y = F.relu(y) if place < 4 else y
        return F.relu(y + x)

    shown = []
    for latent in latents_TCYX.split(1):
        frames = [F.relu(F.conv2d(3 * torch.tanh(latent / 3), w["1.weight"], w["1.bias"], padding=1))]
        for numbers, grow, narrow in (((3, 4, 5), 7, 8), ((9, 10, 11), 13, 14), ((15, 16, 17), 19, 20)):
            for number in numbers:
                frames = [pair(number, x) for x in frames]
            doubled = [x.repeat_interleave(2, -1).repeat_interleave(2, -2) for x in frames]
            width = w[f"{grow}.conv.weight"].shape[1]
            grown = [
                part for x in doubled for part in F.conv2d(x, w[f"{grow}.conv.weight"]).split(width, dim=1)
            ]
            frames = [F.conv2d(x, w[f"{narrow}.weight"], padding=1) for x in grown]
        shown += [F.conv2d(F.relu(x), w["22.weight"], w["22.bias"], padding=1).clamp(0, 1) for x in frames]
    return torch.cat(shown)[3:]


def latents(frames: int) -> Tensor:
    return torch.randn(1, frames, CHANNELS, 3, 4)


@pytest.mark.parametrize("split", [(5,), (1, 4), (3, 2), (1, 1, 1, 2), (2, 3)], ids=str)
def test_any_split_gives_the_pictures_of_the_layout_followed_to_the_letter(
    tiny: TinyDecoder, split: tuple[int, ...]
) -> None:
    z = latents(5)
    state = ()
    parts = []
    for part in z.split(split, dim=1):
        frames, state = tiny.decode(part, state)
        parts.append(frames)
    found = torch.cat(parts, dim=1)
    expected = frame_by_frame(z[0])[None] * 2 - 1
    assert float((expected.abs() < 1).float().mean()) > 0.1, "pictures that are not all black and white"
    assert relative_error(found, expected) <= 1e-5


def test_it_gives_as_many_frames_as_the_full_decoder(tiny: TinyDecoder) -> None:
    first, state = tiny.decode(latents(3))
    second, _ = tiny.decode(latents(3), state)
    assert first.shape == (1, 9, 3, 24, 32)
    assert second.shape == (1, 12, 3, 24, 32)


def test_a_state_can_be_kept_and_used_again(tiny: TinyDecoder) -> None:
    _, state = tiny.decode(latents(2))
    kept = [tail.clone() for tail in state]
    one = latents(1)
    before, _ = tiny.decode(one, state)
    tiny.decode(latents(1), state)
    after, _ = tiny.decode(one, state)
    assert torch.equal(before, after)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))


def test_a_file_for_latents_that_are_not_normalised_gets_them(tiny: TinyDecoder, tmp_path: Path) -> None:
    light = loaded(saved(tmp_path / "lighttaew2_1.safetensors", tensors()))
    z = latents(2)
    mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (SPEC.vae.mean, SPEC.vae.std))
    assert relative_error(light.decode(z)[0], tiny.decode(z * std + mean)[0]) <= 1e-6


def test_a_file_in_another_layout_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    whole = tensors()
    lacking = {
        name: value
        for name, value in whole.items()
        if name not in ("decoder.7.conv.weight", "decoder.22.bias")
    }
    other = whole | {"decoder.13.conv.weight": torch.zeros(12, 12, 1, 1)}
    longer = whole | {"decoder.23.weight": torch.zeros(2)}
    cases = {
        "lacking": (lacking, "decoder.7.conv.weight is missing"),
        "other": (other, r"decoder.13.conv.weight is \[12, 12, 1, 1\], not \[24, 12, 1, 1\]"),
        "longer": (longer, "decoder.23.weight has no place"),
        "empty": ({"encoder.0.weight": torch.zeros(2)}, "decoder.1.weight is missing"),
    }
    for name, (content, said) in cases.items():
        with pytest.raises(WeightsError, match=said) as raised:
            loaded(saved(tmp_path / f"{name}.pth", content))
        assert "\n" not in str(raised.value)


def test_what_is_no_file_for_this_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        loaded(tmp_path / "taew2_1.pth")
    with pytest.raises(WeightsError, match="is a folder"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match="brook"):
        loaded(tmp_path / "taew2_1.pth", MODELS["brook"])


def chunks(engine: Engine, **changes: object) -> list[Chunk]:
    with engine.session("sea", **SMALL, **changes) as session:
        return list(session.stream(3))


@pytest.fixture(scope="module")
def previewing(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """As `tiny_engine`, with a small decoder of the public files' size."""
    path = saved(tmp_path_factory.mktemp("preview") / "taew2_1.pth", tensors(PUBLIC_WIDTHS))
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", preview_decoder=str(path))


def test_previews_change_pictures_and_no_latents(previewing: Engine) -> None:
    for rough, shown in zip(*(chunks(engine) for engine in (previewing, tiny_engine())), strict=True):
        assert rough.digest == shown.digest
        assert rough.frames.shape == shown.frames.shape
        assert not (rough.frames == shown.frames).all()


def test_pictures_that_are_encoded_again_are_the_full_decoders(previewing: Engine) -> None:
    for rough, shown in zip(
        *(chunks(engine, anchor="decoded") for engine in (previewing, tiny_engine())), strict=True
    ):
        assert rough.digest == shown.digest
        assert (rough.frames == shown.frames).all()


def test_weights_are_fingerprinted_without_the_preview(previewing: Engine) -> None:
    assert previewing.fingerprint() == tiny_engine().fingerprint()


def test_a_session_saved_with_previews_goes_on_with_them_and_not_without(
    previewing: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "saved.safetensors"
    fingerprint = previewing.fingerprint()
    with previewing.session("sea", **SMALL) as session:
        list(session.stream(2))
        snapshot.write(snapshot.capture(previewing, session, fingerprint), path)
        [expected] = session.stream(1)
    with snapshot.revive(snapshot.read(path, previewing, fingerprint), previewing, "another") as revived:
        [found] = revived.stream(1)
    assert (found.frames == expected.frames).all()
    with pytest.raises(SnapshotError, match="decoder"):
        snapshot.read(path, tiny_engine(), fingerprint)
