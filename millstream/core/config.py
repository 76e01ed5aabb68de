"""The shapes of models and streams. Frozen, checked once, readable without torch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.core.errors import ConfigError
from millstream.core.schedule import noise_levels

Positions = Literal["absolute", "windowed"]
Anchor = Literal["off", "latent", "decoded"]
Sampler = Literal["renoise", "unipc"]
"""Way of a chunk from one noise level to the next: fresh noise on its clean estimate, or a step of a
multistep solver (`models/unipc.py`)."""

SPATIAL_STRIDE = 8
"""Pixels per latent cell along each side, where a VAE has no other: `VAEConfig.spatial_stride`."""
MAX_STRIDE = 64
GIB = 2**30
TEMPORAL_STRIDE = 4
"""Pixel frames per latent frame, after the first one, which holds a single frame."""
MIN_FPS = 0.1
MAX_FPS = 240.0
"""Frames a second that a stream may play at. Slower ones would keep their chunk, and everybody's turn, for
minutes."""


ImageEntry = Literal["before", "within"]
"""Place of a first frame: committed before the first chunk, as any causal model can, or as the first frame of
that chunk, clean from the beginning, as models trained on a first frame want it."""
Recompute = Literal["none", "selective", "products", "full"]
"""Activations that a block computes again in its backward pass: none, the cheap ones, products too but not
attention, or all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionsConfig:
    """Actions that a model takes in, one vector a latent frame."""

    keys: tuple[str, ...] = ()
    """Names of the keys that steer it, in the order of its weights; others mean nothing to it."""
    look: bool = False
    """True if the view turns by the mouse as well."""
    axes: int = 0
    """Axes of a gamepad that it takes in."""

    @property
    def features(self) -> int:
        """Length of the vector."""
        return len(self.keys) + 2 * self.look + self.axes


@dataclass(frozen=True, kw_only=True, slots=True)
class ConditionsConfig:
    """Conditions that a model takes in, besides words."""

    actions: ActionsConfig | None = None
    """Keys, mouse and gamepad; None: none of them."""
    camera: bool = False
    """True if it takes a camera's motion."""
    image_entry: ImageEntry = "before"
    """Way that it begins from a picture."""


NO_CONDITIONS = ConditionsConfig()
"""Words alone, and a picture to begin from, as every causal model takes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiTConfig:
    """A causal diffusion transformer of the Wan family."""

    layers: int
    width: int
    heads: int
    ffn: int
    channels: int = 16
    """Latent channels, in and out."""
    entry_channels: int = 0
    """Channels that may enter beside them, as a picture's latents do."""
    patch: int = 2
    """Latent cells per token along each side; time is never merged."""
    text_width: int = 4096
    text_tokens: int = 512
    time_features: int = 256
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.head_width % 2:
            raise ConfigError(f"head width {self.head_width} must be even to carry rotary phases")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def channels_in(self) -> int:
        """Channels that a patch is made of."""
        return self.channels + self.entry_channels


@dataclass(frozen=True, kw_only=True, slots=True)
class VAEConfig:
    """A causal video VAE: 8x in space, 4x in time; twice that in space where pixels come in patches."""

    width: int = 96
    decoder_width: int = 0
    """Width of the decoder; 0: the encoder's."""
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    downsample_time: tuple[bool, ...] = (False, True, True)
    channels: int = 16
    mean: tuple[float, ...] = ()
    """Per latent channel; the DiT sees (latent - mean) / std. Empty means zeros."""
    std: tuple[float, ...] = ()
    """Per latent channel. Empty means ones."""
    pixel_patch: int = 1
    """Pixels along each side that become channels before anything else, and pixels again at the end."""
    residual: bool = False
    """True if each level has a shortcut around it, without parameters, as Wan 2.2's."""

    def __post_init__(self) -> None:
        if (
            2 ** (len(self.multipliers) - 1) != SPATIAL_STRIDE
            or 2 ** sum(self.downsample_time) != TEMPORAL_STRIDE
        ):
            raise ConfigError(f"a VAE must shrink {SPATIAL_STRIDE}x in space and {TEMPORAL_STRIDE}x in time")
        if self.pixel_patch not in (1, 2, 4):
            raise ConfigError(f"pixel_patch must be 1, 2 or 4, got {self.pixel_patch}")

    @property
    def spatial_stride(self) -> int:
        """Pixels per latent cell along each side."""
        return SPATIAL_STRIDE * self.pixel_patch

    @property
    def has_fast_path(self) -> bool:
        """True if the fast decoder, tiles and published tiny decoders know it: without shortcuts."""
        return not self.residual and self.pixel_patch == 1

    @property
    def colours(self) -> int:
        """Channels of what its first convolution reads and its last one gives."""
        return 3 * self.pixel_patch**2

    @property
    def widths_down(self) -> tuple[int, ...]:
        """Channels before the encoder's first level and after each."""
        return tuple(self.width * m for m in (1, *self.multipliers))

    @property
    def widths_up(self) -> tuple[int, ...]:
        """Channels before the decoder's first level and after each."""
        width = self.decoder_width or self.width
        return tuple(width * m for m in (self.multipliers[-1], *reversed(self.multipliers)))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """A UMT5 encoder."""

    width: int = 4096
    layers: int = 24
    heads: int = 64
    head_width: int = 64
    ffn: int = 10240
    vocabulary: int = 256384
    position_buckets: int = 32
    """Buckets of each layer's relative position bias, per head."""

    @property
    def untrained(self) -> TextConfig:
        """With random weights it says nothing, so it need not be billions of them: same width, few layers,
        bytes as words."""
        return replace(self, layers=min(self.layers, 2), vocabulary=384, ffn=min(self.ffn, 2 * self.width))


@dataclass(frozen=True, kw_only=True, slots=True)
class BrookVAEConfig:
    """Brook's VAE, widest at latent size."""

    channels: int = 8
    widths: tuple[int, int, int] = (128, 64, 32)
    """At an eighth, a quarter and a half of the picture."""
    blocks: tuple[int, int, int] = (3, 2, 1)
    """Residual blocks of the decoder at each of them."""

    @property
    def spatial_stride(self) -> int:
        return SPATIAL_STRIDE

    @property
    def has_fast_path(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class BrookTextConfig:
    """A small transformer over words of a closed vocabulary."""

    vocabulary: int = 320
    """Room for that many words."""
    tokens: int = 28
    width: int = 128
    layers: int = 2
    heads: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """How one session streams. Everything a session can be asked to be, at its start."""

    height: int = 480
    """Height of a frame, in pixels."""
    width: int = 832
    """Width of a frame, in pixels."""
    fps: float = 16.0
    """Frames a second at which it plays."""
    frames_per_chunk: int = 3
    """Latent frames generated together."""
    steps: tuple[float, ...] = (1000, 750, 500, 250)
    """Noise levels, high to low: one model call each."""
    first_steps: tuple[float, ...] | None = None
    """Noise levels of an epoch's first chunk, also of the first after a picture; None: as `steps`. Models of
    one or two steps are trained with more there, where there is no past to go by."""
    sampler: Sampler = "renoise"
    """Way of a chunk from one level to the next."""
    shift: float = 5.0
    """Moves `steps` towards more noise, as in training; used when `warp` is on."""
    warp: bool = True
    """True if `steps` are positions on the unshifted schedule, false if they are noise levels as they are."""
    context_noise: float = 0.0
    """Noise level of the commit pass, 0 to 1000."""
    window: int = 21
    """Latent frames a chunk may attend to, its own and the sink's among them."""
    sink: int = 0
    """The first frames of the epoch, which never leave the window."""
    positions: Positions = "absolute"
    """Origin of a frame's position: the epoch's beginning, or the window's (docs/positions.md)."""
    anchor: Anchor = "off"
    """Rebuild the window before each chunk from clean latents, its first frame as it is or decoded and
    encoded again."""
    seed: int = 0
    """Seed of the noise."""
    noise_scale: float = 0.7
    """Video to video: share of noise mixed into the input, 0 to 1."""
    motion_gain: float = 0.2
    """Video to video: how much the fastest motion adds to `noise_scale`; 0 switches the controller off."""
    kv_bias: float = 1.0
    """Weight of past frames in attention, 0 (exclusive) to 1; below 1 a stream changes its mind more
    easily."""
    stride: int = SPATIAL_STRIDE
    """Pixels per latent cell along each side. That of its model's VAE: nobody chooses it."""

    def __post_init__(self) -> None:
        check_size(self.height, self.width, self.stride)
        check_steps(self.steps)
        check_steps(self.opening_steps, "first_steps")
        check_window(self.window, self.sink, self.frames_per_chunk)
        check_seed(self.seed)
        check_share("noise_scale", self.noise_scale)
        check_share("kv_bias", self.kv_bias)
        if self.positions not in ("absolute", "windowed"):
            raise ConfigError(f"positions must be absolute or windowed, got {self.positions!r}")
        if self.sampler not in ("renoise", "unipc"):
            raise ConfigError(f"sampler must be renoise or unipc, got {self.sampler!r}")
        if self.anchor not in ("off", "latent", "decoded"):
            raise ConfigError(f"anchor must be off, latent or decoded, got {self.anchor!r}")
        if not MIN_FPS <= self.fps <= MAX_FPS:
            raise ConfigError(f"fps must be between {MIN_FPS:g} and {MAX_FPS:g}, got {self.fps:.9g}")
        if not (math.isfinite(self.shift) and self.shift > 0):
            raise ConfigError(f"shift must be above 0, got {self.shift}")
        check_steps(self.noise_levels(self.steps))
        check_steps(self.noise_levels(self.opening_steps), "first_steps")
        if not 0 <= self.context_noise <= 1000:
            raise ConfigError(f"context_noise must be between 0 and 1000, got {self.context_noise}")
        if not -1 <= self.motion_gain <= 1:
            raise ConfigError(f"motion_gain must be between -1 and 1, got {self.motion_gain}")

    @property
    def latent_size(self) -> tuple[int, int]:
        return self.height // self.stride, self.width // self.stride

    @property
    def opening_steps(self) -> tuple[float, ...]:
        """Steps of an epoch's first chunk."""
        return self.steps if self.first_steps is None else self.first_steps

    def noise_levels(self, steps: tuple[float, ...]) -> tuple[float, ...]:
        """Return the noise levels that `steps` stand for in this stream."""
        return noise_levels(steps, shift=self.shift, warp=self.warp)

    @property
    def begin_frames(self) -> int:
        """Most pixel frames of a clip that the stream can begin from: those of a window without its chunk."""
        return pixel_frames(0, max(1, self.window - self.frames_per_chunk))

    @property
    def chunks_to_fill(self) -> int:
        """Chunks of an epoch until its window is full."""
        return -(-self.window // self.frames_per_chunk)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """One model by name: its three parts and the stream it was made for."""

    name: str
    dit: DiTConfig
    vae: VAEConfig | BrookVAEConfig = field(default_factory=VAEConfig)
    text: TextConfig | BrookTextConfig = field(default_factory=TextConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    default_prompt: str = ""
    """Prompt that an empty one stands for; without it an empty prompt is refused."""
    conditions: ConditionsConfig = NO_CONDITIONS
    """Conditions that steer it besides words."""

    def __post_init__(self) -> None:
        if self.stream.stride != self.stride:
            raise ConfigError(
                f"{self.name} has a VAE of {self.stride} pixels a cell and a stream of {self.stream.stride}; "
                f"make the stream with stride={self.stride}"
            )

    @property
    def stride(self) -> int:
        """Pixels per latent cell along each side."""
        return self.vae.spatial_stride


def pixel_frames(start_frame: int, frames: int) -> int:
    """Pixel frames that `frames` latent frames decode to when the first of them is number `start_frame` of
    its epoch."""
    return TEMPORAL_STRIDE * frames - (TEMPORAL_STRIDE - 1 if start_frame == 0 else 0)


def latent_frames(num_frames: int) -> int:
    """Whole latent frames that so many pixel frames make from an epoch's beginning: the first holds one,
    later ones four."""
    assert num_frames >= 1, f"{num_frames} frames make no latent frame"
    return 1 + (num_frames - 1) // TEMPORAL_STRIDE


def chunks_for(num_frames: int, stream: StreamConfig) -> int:
    """Whole chunks that hold so many pixel frames."""
    first, later = (pixel_frames(start, stream.frames_per_chunk) for start in (0, stream.frames_per_chunk))
    return 1 + max(0, -(-(num_frames - first) // later))


COMMON_SIZES = {
    "240p": (240, 416),
    "360p": (352, 640),
    "480p": (480, 832),
    "720p": (720, 1280),
    "1080p": (1088, 1920),
}
"""As people call them, in multiples of 16 as most models have them."""


def parse_size(text: str) -> tuple[int, int]:
    """HEIGHTxWIDTH, or what people call it: 480p."""
    if text.lower() in COMMON_SIZES:
        return COMMON_SIZES[text.lower()]
    height, cross, width = text.lower().partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and len(text) <= 16):
        raise ConfigError(f"size must be HEIGHTxWIDTH, for example 480x832, or 480p, got {text[:40]!r}")
    return int(height), int(width)


def check_size(height: int, width: int, stride: int = SPATIAL_STRIDE) -> None:
    """Raise if a DiT's patches of cells of `stride` pixels do not fill such frames."""
    if not 1 <= stride <= MAX_STRIDE:
        raise ConfigError(f"stride must be 1 to {MAX_STRIDE} pixels, got {stride}")
    unit = size_unit(stride)
    if height > 8192 or width > 8192:
        raise ConfigError(f"size must be at most 8192 a side, got {height}x{width}")
    if height < unit or width < unit or height % unit or width % unit:
        nearest = f"{max(unit, round(height / unit) * unit)}x{max(unit, round(width / unit) * unit)}"
        raise ConfigError(
            f"size must be HEIGHTxWIDTH in multiples of {unit}, got {height}x{width}; try {nearest}"
        )


def size_unit(stride: int) -> int:
    """Pixels that a frame's sides are multiples of: those of a DiT's patch of 2 cells."""
    return 2 * stride


def check_steps(steps: tuple[float, ...], name: str = "steps") -> None:
    if not steps:
        raise ConfigError(f"{name} must name at least one noise level, for example 1000,750,500,250")
    if any(not 0 < step <= 1000 for step in steps):
        raise ConfigError(f"{name} must lie above 0 and at most at 1000, got {_listed(steps)}")
    if any(later >= earlier for earlier, later in itertools.pairwise(steps)):
        raise ConfigError(f"{name} must decrease, got {_listed(steps)}")


def check_window(window: int, sink: int, frames_per_chunk: int) -> None:
    if frames_per_chunk < 1:
        raise ConfigError(f"frames_per_chunk must be 1 or more, got {frames_per_chunk}")
    if sink < 0:
        raise ConfigError(f"sink must be 0 or more, got {sink}")
    if window < frames_per_chunk + sink:
        needed = frames_per_chunk + sink
        raise ConfigError(
            f"window {window} with sink {sink} cannot hold a chunk of {frames_per_chunk} beside it; use "
            f"{needed} or more"
        )
    if window > 1024:
        raise ConfigError(f"window must be at most 1024 latent frames, got {window}")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed must be between 0 and 2^63 - 1, got {seed}")


def check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be above 0 and at most 1, got {value}")


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)
