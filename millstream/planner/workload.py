"""Workload that a plan is made for: a model, how it streams, in what precision, with which kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import SPATIAL_STRIDE, ModelSpec, StreamConfig, VAEConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.cards.weights import NATIVE, check_weights
from millstream.planner.software import SOFTWARE, Software, without_fast_decoder

Precision = Literal["native", "fp8"]
TEXT_PLACES = ("device", "visiting", "cpu")
DECODERS = ("full", "tiny")


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    spec: ModelSpec
    stream: StreamConfig
    precision: Precision = "native"
    """Precision of matmuls: bf16 (fp32 on a processor without it), or fp8. Caches and the rest stay
    native."""
    software: Software = SOFTWARE["eager"]
    batch: int = 1
    """Sessions whose chunks share their model calls."""
    commit: bool = True
    """True if a finished chunk is run once more, clean, for its keys and values."""
    video_in: bool = False
    """Video to video: pictures are encoded too."""
    stream_batch: bool = False
    """Several noise levels of consecutive chunks in one call, as StreamDiffusion does: fills a pipeline from
    one session."""
    whole_clip: bool = False
    """A model that makes a clip at once, its frames all seeing each other: one chunk, nothing kept, no
    commit."""
    guidance: bool = False
    """Each step is run twice, with the prompt and without it."""
    decoder: str = "full"
    """The model's own VAE, or `tiny`: TAEHV's small decoder; pictures that come in are encoded by the model's
    own."""
    text_place: str = "device"
    """Where the text encoder is: on the `device` for good, `visiting` it for each prompt, or on the host's
    `cpu`."""
    weights: str = NATIVE
    """How the DiT's are kept in memory, see `cards/weights.py`."""

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if self.decoder == "tiny" and not self.has_tiny_decoder:
            raise ConfigError(f"no tiny decoder of {self.spec.name}'s latents is known; leave --vae tiny out")
        if self.decoder not in DECODERS:
            raise ConfigError(f"--vae must be {' or '.join(DECODERS)}, got {self.decoder!r}")
        if self.text_place not in TEXT_PLACES:
            raise ConfigError(f"--text must be one of {', '.join(TEXT_PLACES)}, got {self.text_place!r}")
        if self.weights != NATIVE and self.precision == "fp8":
            raise ConfigError(
                f"--weights {self.weights} are unpacked for products in bf16; leave --precision fp8 out"
            )
        if not 1 <= self.batch <= 256:
            raise ConfigError(f"batch must be 1 to 256 sessions, got {self.batch}")

    @property
    def has_tiny_decoder(self) -> bool:
        return self.spec.stride == SPATIAL_STRIDE

    @property
    def vae_software(self) -> Software:
        """Kernels that its VAE runs on."""
        vae = self.spec.vae
        is_plain = isinstance(vae, VAEConfig) and not vae.has_fast_path
        return without_fast_decoder(self.software) if is_plain else self.software

    @property
    def chunk_tokens(self) -> int:
        return self.stream.frames_per_chunk * tokens_per_frame(self.spec.dit, self.stream)

    def rank_tokens(self, layout: Topology) -> int:
        """Count a chunk's tokens on each rank: where a frame's tokens do not divide evenly, the last rank's
        are padded."""
        return self.stream.frames_per_chunk * -(-tokens_per_frame(self.spec.dit, self.stream) // layout.sp)

    @property
    def window_tokens(self) -> int:
        return self.stream.window * tokens_per_frame(self.spec.dit, self.stream)

    @property
    def chunk_frames(self) -> int:
        """Pixel frames of a chunk, after the epoch's first; of a whole clip, which is the first."""
        return pixel_frames(0 if self.whole_clip else 1, self.stream.frames_per_chunk)

    @property
    def rebuilds(self) -> int:
        """Calls before each chunk that rebuild the window, when it is anchored."""
        if self.stream.anchor == "off":
            return 0
        return -(-(self.stream.window - self.stream.frames_per_chunk) // self.stream.frames_per_chunk)

    @property
    def commits(self) -> int:
        return int(self.commit and not self.whole_clip and self.stream.anchor == "off")

    @property
    def step_calls(self) -> int:
        return len(self.stream.steps) * (2 if self.guidance else 1)

    @property
    def first_step_calls(self) -> int:
        """Calls of the steps of an epoch's first chunk."""
        return len(self.stream.opening_steps) * (2 if self.guidance else 1)

    @property
    def calls(self) -> int:
        return self.rebuilds + self.step_calls + self.commits

    @property
    def encodes(self) -> bool:
        return self.video_in or self.stream.anchor == "decoded"

    @property
    def deadline_ms(self) -> float:
        """How long a chunk plays."""
        return 1e3 * self.chunk_frames / self.stream.fps
