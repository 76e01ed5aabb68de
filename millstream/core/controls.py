"""Controls that a client may send to a running session, and the two receipts for each.

A control applies at a chunk boundary. These are plain messages: `session/timeline.py` gives them meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from millstream.core.conditions import (
    MAX_KEYS,
    ImageMode,
    Picture,
    check_axes,
    check_keys,
    check_lens,
    check_look,
    check_motion,
)
from millstream.core.config import check_seed, check_share, check_steps
from millstream.core.errors import ControlError, PromptError

MAX_PROMPT_BYTES = 8192
MAX_PROMPTS = 8
MAX_MIX = 2 * MAX_PROMPTS
"""Most prompts of a mix in force: while one blends into another, it has those of both."""
MAX_WEIGHT = 1e6
"""So that no sum of weights is beyond what a float holds."""
MAX_BLEND_CHUNKS = 256
MAX_IMAGE_BYTES = 16 * 2**20
"""Largest picture file that is taken."""
MAX_PATH = 256
"""Most frames of a camera path that wait."""

Switch = Literal["cut", "recompute", "keep", "blend"]


class WeightedPrompt(msgspec.Struct, frozen=True):
    """One text and its share in a mix."""

    text: str
    """Text of what the stream shows."""
    weight: float = 1.0
    """Above 0, at most 1,000,000; shares are weights over their sum."""


class AskedPrompt(WeightedPrompt, frozen=True, forbid_unknown_fields=True):
    """Weighted prompt as a client writes it: a misspelt field is refused, where an envelope's would be
    ignored."""


class Control(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all controls. An empty id is replaced by the session."""

    id: str = ""
    """The client's own name for it, up to 128 letters. One that waits for the same chunk is replaced by
    another of its kind with the same id: a knob that is being turned is one control a chunk."""

    def check(self) -> None:
        """Raise an error that names the fix if this can never apply."""


class SetPrompt(Control, frozen=True, kw_only=True, tag="prompt"):
    """Change what the stream shows."""

    prompt: str = ""
    """This or `prompts`."""
    prompts: tuple[AskedPrompt, ...] = ()
    """A mix of up to 8."""
    mode: Switch = "recompute"
    """cut: start a new picture; recompute: keep the picture, rebuild the window under the new prompt; keep:
    keep the picture and its window, the new prompt takes over slowly; blend: move from the old mix to the new
    one over `chunks` chunks."""
    chunks: int = 4
    """How long a blend takes, 1 to 256."""

    def check(self) -> None:
        if bool(self.prompt) == bool(self.prompts):
            raise PromptError("a prompt control needs either prompt or prompts, not both and not neither")
        check_prompts(self.mix)
        if not 1 <= self.chunks <= MAX_BLEND_CHUNKS:
            raise ControlError(f"chunks must be between 1 and {MAX_BLEND_CHUNKS}, got {self.chunks}")

    @property
    def mix(self) -> tuple[WeightedPrompt, ...]:
        return as_mix(self.prompts, self.prompt)


class Cut(Control, frozen=True, kw_only=True, tag="cut"):
    """Start a new picture under the current prompt."""


class SetSteps(Control, frozen=True, kw_only=True, tag="steps"):
    """Change the noise levels, and with them the number of model calls a chunk."""

    steps: tuple[float, ...]
    first_steps: tuple[float, ...] | None = None
    """Noise levels of the first chunk after a cut; null: they stay as they are."""

    def check(self) -> None:
        check_steps(self.steps)
        if self.first_steps is not None:
            check_steps(self.first_steps, "first_steps")


class SetSeed(Control, frozen=True, kw_only=True, tag="seed"):
    """Change the noise from the next chunk on."""

    seed: int

    def check(self) -> None:
        check_seed(self.seed)


class SetNoiseScale(Control, frozen=True, kw_only=True, tag="noise_scale"):
    """Change how much noise is mixed into an input video. Refused in a session without one."""

    noise_scale: float

    def check(self) -> None:
        check_share("noise_scale", self.noise_scale)


class SetWindow(Control, frozen=True, kw_only=True, tag="window"):
    """Change how far back a chunk attends; the window is rebuilt from clean latents."""

    window: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    sink: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0


class SetKVBias(Control, frozen=True, kw_only=True, tag="kv_bias"):
    """Change the weight of past frames in attention."""

    kv_bias: float

    def check(self) -> None:
        check_share("kv_bias", self.kv_bias)


class SetImage(Control, frozen=True, kw_only=True, tag="image"):
    """Go on from a picture: walk out of a photo, or begin where another clip ends."""

    image: bytes = b""
    """A picture file (PNG, JPEG, WebP, GIF, BMP or TIFF; base64 in JSON), or a clip, whose end is taken."""
    picture: Picture | None = None
    """Picture fitted to the stream's size: a server makes it of `image`, and refuses one that a client
    sends."""
    fit: Literal["crop", "pad"] = "crop"
    """Fitting of `image` to the stream's shape: cut at the sides, or with borders."""
    mode: ImageMode = "cut"
    """cut: the picture is the next frame, and the stream goes on from it; blend: the stream moves towards it
    over `chunks` chunks."""
    chunks: int = 4
    """How long a blend takes, 1 to 256."""

    def check(self) -> None:
        if bool(self.image) == (self.picture is not None):
            raise ControlError("an image control needs a picture: give its file as `image`")
        if len(self.image) > MAX_IMAGE_BYTES:
            raise ControlError(
                f"the picture's file has {len(self.image)} bytes; make it smaller than {MAX_IMAGE_BYTES}"
            )
        if self.picture is not None:
            self.picture.check()
        if not 1 <= self.chunks <= MAX_BLEND_CHUNKS:
            raise ControlError(f"chunks must be between 1 and {MAX_BLEND_CHUNKS}, got {self.chunks}")


class SetActions(Control, frozen=True, kw_only=True, tag="actions"):
    """Say which keys are held from now on, and how far the view was turned since the last such control.
    Several that wait for one chunk add up: no short press is lost."""

    keys: tuple[str, ...] = ()
    """Names of all keys that are held now, as `w`, `left`, `space`; none: all are released."""
    tapped: tuple[str, ...] = ()
    """Keys that were pressed and released since the last message."""
    look: tuple[float, float] = (0.0, 0.0)
    """Degrees that the view was turned by since the last message, to the right and down."""
    axes: tuple[float, ...] = ()
    """Positions of a gamepad's axes, -1 to 1: left stick x and y, right stick x and y."""
    t: float = 0.0
    """Any number, such as the client's time when the key was pressed; the server makes no use of it."""

    def check(self) -> None:
        check_keys(self.keys)
        check_keys(self.tapped)
        check_look(self.look)
        check_axes(self.axes)
        if not math.isfinite(self.t):
            raise ControlError(f"t must be a number, got {self.t}")

    def after(self, earlier: SetActions) -> SetActions:
        """Return both as one control."""
        look = (earlier.look[0] + self.look[0], earlier.look[1] + self.look[1])
        return msgspec.structs.replace(
            self, tapped=self.tapped_since(earlier.keys, earlier.tapped), look=look
        )

    def tapped_since(self, held: tuple[str, ...], tapped: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys that were pressed and released, given those that were held and tapped before."""
        let_go = set(held) - set(self.keys)
        return tuple(sorted({*tapped, *self.tapped, *let_go})[:MAX_KEYS])


class SetCamera(Control, frozen=True, kw_only=True, tag="camera"):
    """Move the camera."""

    motion: tuple[float, ...] = ()
    """Motion of every latent frame from now on, camera to camera: 12 numbers, three rows of a rotation and
    a translation; x to the right, y down, z forward. Empty: the camera stands still after `path`."""
    path: tuple[tuple[float, ...], ...] = ()
    """Motions of the next latent frames, one each, before `motion` applies; up to 256."""
    lens: tuple[float, float, float, float] | None = None
    """Focal lengths and centre, as shares of the picture's width and height: fx, fy, cx, cy. null: as it
    is."""

    def check(self) -> None:
        if len(self.path) > MAX_PATH:
            raise ControlError(f"a camera's path has at most {MAX_PATH} frames, got {len(self.path)}")
        for motion in (*self.path, *((self.motion,) if self.motion else ())):
            check_motion(motion)
        if self.lens is not None:
            check_lens(self.lens)


class Pause(Control, frozen=True, kw_only=True, tag="pause"):
    """Plan no further chunk until resumed. What else is asked for that chunk applies when it is planned."""


class Resume(Control, frozen=True, kw_only=True, tag="resume"):
    """Go on after a pause."""


class Stop(Control, frozen=True, kw_only=True, tag="stop"):
    """End the session after the chunks already planned."""


AnyControl = (
    SetPrompt
    | Cut
    | SetSteps
    | SetSeed
    | SetNoiseScale
    | SetWindow
    | SetKVBias
    | SetImage
    | SetActions
    | SetCamera
    | Pause
    | Resume
    | Stop
)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """State of a control: first `queued`, then `applied`."""

    control_id: str
    """The control's id."""
    state: Literal["queued", "applied"]
    """State of the control."""
    chunk_index: int
    """queued: the first chunk it can apply at; applied: the chunk it did apply at."""


def as_mix(prompts: Sequence[WeightedPrompt], prompt: str) -> tuple[WeightedPrompt, ...]:
    """A mix as it was asked for, or one prompt alone where there is none."""
    return tuple(WeightedPrompt(asked.text, asked.weight) for asked in prompts) or (WeightedPrompt(prompt),)


def fill_empty(prompts: tuple[WeightedPrompt, ...], default_prompt: str) -> tuple[WeightedPrompt, ...]:
    """Return the mix with `default_prompt` in place of empty prompts."""
    return tuple(
        prompt if prompt.text.strip() or not default_prompt else WeightedPrompt(default_prompt, prompt.weight)
        for prompt in prompts
    )


def check_prompts(prompts: tuple[WeightedPrompt, ...], most: int = MAX_PROMPTS) -> None:
    if not 1 <= len(prompts) <= most:
        raise PromptError(f"a mix needs 1 to {most} prompts, got {len(prompts)}")
    for prompt in prompts:
        if not prompt.text.strip():
            raise PromptError("the prompt is empty; say what the stream should show")
        size = len(prompt.text.encode("utf-8", "surrogatepass"))
        if size > MAX_PROMPT_BYTES:
            raise PromptError(f"the prompt has {size} bytes; shorten it to {MAX_PROMPT_BYTES}")
        if not 0 < prompt.weight <= MAX_WEIGHT:
            raise PromptError(
                f"prompt weights must be above 0 and at most {MAX_WEIGHT:g}, got {prompt.weight}"
            )


def check_mix(prompts: tuple[WeightedPrompt, ...], most: int = MAX_PROMPTS) -> None:
    """Check a mix that is in force, and so was normalised. Shares of less than one in all could vanish in a
    blend."""
    check_prompts(prompts, most)
    total = sum(prompt.weight for prompt in prompts)
    if not math.isclose(total, 1.0, rel_tol=1e-6):
        raise PromptError(f"the shares of a mix must sum to 1, got {total}")


def normalise(prompts: tuple[WeightedPrompt, ...]) -> tuple[WeightedPrompt, ...]:
    """Return the mix with weights that sum to one and each text once. A text whose share is too small for a
    float is left out."""
    total = sum(prompt.weight for prompt in prompts)
    assert total > 0, f"a mix of {len(prompts)} prompts weighs {total}"
    shares: dict[str, float] = {}
    for prompt in prompts:
        shares[prompt.text] = shares.get(prompt.text, 0.0) + prompt.weight / total
    return tuple(WeightedPrompt(text, weight) for text, weight in shares.items() if weight > 0)


def heaviest(prompts: tuple[WeightedPrompt, ...]) -> tuple[WeightedPrompt, ...]:
    """Return the heaviest prompts of a mix, as many as a client could have asked for."""
    if len(prompts) <= MAX_PROMPTS:
        return prompts
    chosen = sorted(prompts, key=lambda prompt: -prompt.weight)[:MAX_PROMPTS]
    return normalise(tuple(prompt for prompt in prompts if prompt in chosen))
