"""Which speed-ups are on. All off is the plain path; every other is held against it.

Figures only: what each one does is in `ops/`, `models/fast/` and `models/wan/decoder.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from millstream.core.errors import ConfigError

FP8_GROUPS = ("qkv", "out", "cross", "mlp")
"""Layer groups whose weights and inputs may be e4m3: self-attention in and out, the prompt's in and out, the MLP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    blocks: bool = False
    """Blocks with q, k and v as one product and everything between products fused."""
    fp8: tuple[str, ...] = ()
    """Layer groups in e4m3, with a scale a row; needs `blocks`."""
    round_keys: bool = False
    """Attention over a round number of keys, zeros among them, corrected exactly; needs `blocks`."""
    decoder: bool = False
    """Wan's decoder in channels-last, fused between convolutions."""
    own_convolution: bool = False
    """The 3x3x3 convolution of our own where it can be built; needs `decoder`."""
    paired_commits: bool = False
    """A chunk's commit in one call with the next chunk's first step; block-causal, hence exact."""
    graphs: bool = False
    """Model calls as CUDA graphs, one for each level the window is filled to; needs `blocks`."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.fp8) - set(FP8_GROUPS)):
            raise ConfigError(f"fp8 knows no layer group {', '.join(unknown)}; known: {', '.join(FP8_GROUPS)}")
        if (self.fp8 or self.round_keys or self.graphs) and not self.blocks:
            raise ConfigError("fp8, round_keys and graphs are ways to run fast blocks; switch blocks on too")
        if self.own_convolution and not self.decoder:
            raise ConfigError("own_convolution is a part of the fast decoder; switch decoder on too")

    @property
    def any(self) -> bool:
        return self != Speed()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are on."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))


ALL = Speed(blocks=True, round_keys=True, decoder=True, own_convolution=True, graphs=True)
"""Everything but fp8, which costs quality, and paired commits, which do not always pay: these are asked for by name."""


def parse_speed(text: str, precision: str = "bf16") -> Speed:
    """`off`, `on`, or names with commas between them; a minus before a name takes it from all: `on,-graphs`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    switches = {field.name for field in fields(Speed)} - {"fp8"}
    chosen = ALL if "on" in words else Speed()
    changes: dict[str, bool] = {}
    for word in words:
        if word in ("on", "off"):
            continue
        name = word.removeprefix("-")
        if name not in switches:
            raise ConfigError(f"--fast knows no {name!r}; say off, on, or some of {', '.join(sorted(switches))}")
        changes[name] = not word.startswith("-")
    if precision not in ("bf16", "fp8", "fp32"):
        raise ConfigError(f"--precision must be bf16, fp8 or fp32, got {precision!r}")
    groups = FP8_GROUPS if precision == "fp8" else ()
    return replace(chosen, **changes, fp8=groups)
