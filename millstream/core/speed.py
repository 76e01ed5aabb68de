"""Which speed-ups are on. All off is the plain path; every other is held against it.

Figures only: what each one does is in `ops/`, `models/fast/` and `models/wan/fast_vae.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from millstream.core.errors import ConfigError

FP8_GROUPS = ("qkv", "out", "cross", "mlp")
"""Layer groups whose weights and inputs may be e4m3: self-attention in and out, the prompt's in and out, the
MLP."""
PRECISIONS = {
    "auto": "auto",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "bfloat16",
    "int8": "auto",
    "fp32": "float32",
    "float32": "float32",
}
"""Values of `--precision`, and the dtype that weights and activations then have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    blocks: bool = False
    """Blocks with q, k and v as one product and everything between products fused."""
    fp8: tuple[str, ...] = ()
    """Layer groups in e4m3, with a scale a row; needs `blocks`."""
    int8: bool = False
    """Brook's blocks on a CPU: linear layers in bytes, with ranges measured beforehand."""
    thin_decoder: bool = False
    """Pictures by Brook's thin decoder, distilled from its own: a fifth of the work."""
    round_keys: bool = False
    """Attention over a round number of keys, zeros among them, corrected exactly; needs `blocks`."""
    even_waves: bool = False
    """Queries that would leave most of the GPU idle attend to parts of the keys at once, put together
    exactly; needs `round_keys`."""
    low_attention: bool = False
    """Attention in 8 bits, over a copy of the window that is kept beside it; needs `blocks`."""
    decoder: bool = False
    """Wan's VAE in channels-last, fused between convolutions."""
    own_convolution: bool = False
    """The 3x3x3 convolution of our own where it can be built; needs `decoder`."""
    paired_commits: bool = False
    """A chunk's commit in one call with the next chunk's first step; block-causal, hence exact."""
    peer_memory: bool = False
    """Tensor-parallel ranks of one machine sum and collect in each other's GPU memory, where it can be
    reached, instead of by NCCL; needs `blocks`."""
    graphs: bool = False
    """Model calls as CUDA graphs, one for each level the window is filled to; needs `blocks`."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.fp8) - set(FP8_GROUPS)):
            raise ConfigError(
                f"fp8 knows no layer group {', '.join(unknown)}; known: {', '.join(FP8_GROUPS)}"
            )
        if self.int8 and self.blocks:
            raise ConfigError("int8 is a way to run plain blocks, on a CPU; switch blocks off")
        of_blocks = [
            name
            for name in ("fp8", "round_keys", "low_attention", "peer_memory", "graphs")
            if getattr(self, name)
        ]
        if of_blocks and not self.blocks:
            raise ConfigError(f"{', '.join(of_blocks)}: only fast blocks run so; switch blocks on too")
        if self.even_waves and not self.round_keys:
            raise ConfigError("even_waves shares out a round number of keys; switch round_keys on too")
        if self.own_convolution and not self.decoder:
            raise ConfigError("own_convolution is a part of the fast decoder; switch decoder on too")

    @property
    def any(self) -> bool:
        return self != Speed()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the speed-ups that are on."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    def __str__(self) -> str:
        """As `--fast` takes it, but for fp8, which says which groups."""
        named = [name for name in self.names if name != "fp8"]
        return ",".join([*named, *([f"fp8 ({' '.join(self.fp8)})"] if self.fp8 else [])]) or "off"


PLAIN = Speed()
ALL = Speed(blocks=True, round_keys=True, even_waves=True, decoder=True, own_convolution=True, graphs=True)
"""Everything but fp8, int8, low_attention and thin_decoder, which cost quality, and what does not always pay:
these are asked for by name."""


OF_GENERATOR = (
    "blocks",
    "fp8",
    "round_keys",
    "even_waves",
    "low_attention",
    "paired_commits",
    "peer_memory",
    "graphs",
)
"""Speed-ups that concern a rank of a mesh; the others concern the process that makes the pictures."""


def of_generator(speed: Speed) -> Speed:
    return Speed(**{name: getattr(speed, name) for name in OF_GENERATOR})


def of_pictures(speed: Speed) -> Speed:
    return replace(speed, **{name: getattr(PLAIN, name) for name in OF_GENERATOR})


def dtype_of(precision: str) -> str:
    """Return the dtype of weights and activations; fp8 and int8 concern products alone."""
    if precision not in PRECISIONS:
        raise ConfigError(
            "--precision must be auto, bf16, fp8, int8 or fp32 (bfloat16 and float32 will do), got "
            f"{precision!r}"
        )
    return PRECISIONS[precision]


def parse_speed(text: str, precision: str = "auto", *, automatic: Speed | None = None) -> Speed:
    """`auto`, `off`, `on`, or names with commas between them; a minus before a name takes it away:
    `on,-graphs`.

    `automatic` is what `auto` stands for where it is asked; blocks come with it if fp8 is wanted of them.
    """
    dtype_of(precision)
    words = [word.strip() for word in text.split(",") if word.strip()]
    chosen = ALL if "on" in words else automatic or Speed() if "auto" in words else Speed()
    groups = {"fp8": FP8_GROUPS, "auto": chosen.fp8}.get(precision, ())
    if "auto" in words:
        chosen = replace(chosen, blocks=chosen.blocks or bool(groups), int8=chosen.int8 and not groups)
    int8 = precision == "int8" or (precision == "auto" and chosen.int8)
    if dtype_of(precision) == "float32":
        chosen = replace(
            chosen, thin_decoder=False
        )  # whoever asks for it wants the numbers rather than the speed
    return replace(chosen, **_named(words), fp8=groups, int8=int8)


def _named(words: Sequence[str]) -> dict[str, bool]:
    """Which switches are said to be on or off."""
    switches = {field.name for field in fields(Speed)} - {"fp8", "int8"}
    changes: dict[str, bool] = {}
    for word in words:
        if word in ("auto", "on", "off"):
            continue
        name = word.removeprefix("-")
        if name not in switches:
            raise ConfigError(
                f"--fast knows no {name!r}; say auto, off, on, or some of {', '.join(sorted(switches))}"
            )
        changes[name] = not word.startswith("-")
    return changes
