"""Decoder language models by their published shapes: parameters, what one token uses of them, keys and
values.

Blocks are attention with grouped heads of keys, then an MLP (gated unless said otherwise) or several, of
which a router takes some for each token. No biases, no learnt positions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    name: str = "custom"
    layers: int
    width: int
    heads: int
    kv_heads: int
    """Heads of keys and values: as many as `heads`, or fewer that groups of heads share."""
    ffn: int
    vocabulary: int = 32000
    experts: int = 1
    """MLPs of a block."""
    active: int = 1
    """Experts that one token uses."""
    gated: int = 1
    """1 for three matrices in an MLP, 0 for two."""
    tied: int = 0
    """1 where the head is the embedding."""

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ConfigError(
                f"width {self.width} must be a multiple of heads {self.heads}, and these of kv_heads "
                f"{self.kv_heads}"
            )
        if self.active > self.experts:
            raise ConfigError(
                f"a token takes {self.active} of {self.experts} experts; active must be at most experts"
            )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def attention_parameters(self) -> int:
        return 2 * self.width * self.width + 2 * self.width * self.kv_heads * self.head_width

    @property
    def expert_parameters(self) -> int:
        return (3 if self.gated else 2) * self.width * self.ffn

    def block_parameters(self, experts: float) -> float:
        """Count the parameters of a block with so many of its experts."""
        router = self.width * self.experts if self.experts > 1 else 0
        return self.attention_parameters + experts * self.expert_parameters + router + 2 * self.width

    @property
    def parameters(self) -> int:
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.width
        return int(self.layers * self.block_parameters(self.experts)) + embeddings + self.width

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with or looked up in."""
        return self.parameters - self.layers * (self.experts - self.active) * self.expert_parameters

    @property
    def multiplied_parameters(self) -> int:
        """Active parameters without the embedding, where a lookup costs nothing."""
        return self.active_parameters - (0 if self.tied else self.vocabulary * self.width)

    def kv_bytes(self, tokens: float, value_bytes: int = 2) -> float:
        return 2 * self.layers * self.kv_heads * self.head_width * value_bytes * tokens

    def read_parameters(self, tokens: int) -> float:
        """Whose bytes a call over so many tokens reads: of the experts those that some token chose, if all
        are chosen alike."""
        chosen = self.experts * (1 - (1 - self.active / self.experts) ** tokens)
        return self.multiplied_parameters + self.layers * (chosen - self.active) * self.expert_parameters


def _llama(
    name: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int
) -> DecoderConfig:
    return DecoderConfig(
        name=name, layers=layers, width=width, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=vocabulary
    )


DECODERS = {
    each.name: each
    for each in (
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
        _llama("llama-30b", 60, 6656, 52, 52, 17920, 32000),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256),
        DecoderConfig(
            name="mixtral-8x7b",
            layers=32,
            width=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            experts=8,
            active=2,
            vocabulary=32000,
        ),
        DecoderConfig(
            name="gpt-3-175b",
            layers=96,
            width=12288,
            heads=96,
            kv_heads=96,
            ffn=49152,
            vocabulary=50257,
            gated=0,
            tied=1,
        ),
    )
}
_SHORT = {
    "7b": "llama-2-7b",
    "8b": "llama-3-8b",
    "13b": "llama-2-13b",
    "30b": "llama-30b",
    "70b": "llama-3-70b",
    "175b": "gpt-3-175b",
    "405b": "llama-3.1-405b",
}
_SHAPES = [field.name for field in fields(DecoderConfig) if field.name != "name"]
_ONLY_THEIRS = {"kv_heads", "experts", "active", "vocabulary", "gated", "tied"}
"""Shapes of a custom language model that no video model has."""


def is_decoder(text: str) -> bool:
    """Return whether a name or custom shapes are of a language model. Custom ones are told apart by shapes
    that they alone have: `kv_heads`, `experts`."""
    shapes = {pair.partition("=")[0].strip() for pair in text.split(",")}
    return text.lower() in DECODERS or text.lower() in _SHORT or ("=" in text and bool(shapes & _ONLY_THEIRS))


def find_decoder(text: str) -> DecoderConfig:
    """A name, a short one (`70b`), or
    `layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,experts=8,active=2`."""
    if "=" in text:
        return _from_shapes(text)
    name = _SHORT.get(text.lower(), text.lower())
    if name not in DECODERS:
        raise ConfigError(
            f"{text!r} is not a known language model; known: {', '.join((*_SHORT, *DECODERS))}, or its shapes"
        )
    return DECODERS[name]


def _from_shapes(text: str) -> DecoderConfig:
    shapes = dict[str, int]()
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        may_be_none = name in ("gated", "tied")
        if (
            name not in _SHAPES
            or not value.isdecimal()
            or not (0 if may_be_none else 1) <= int(value) <= 1 << 20
        ):
            raise ConfigError(
                f"{pair.strip()!r}: a custom language model is {','.join(f'{each}=N' for each in _SHAPES)}"
            )
        shapes[name] = int(value)
    missing = [name for name in _SHAPES[:5] if name not in shapes]
    if missing:
        raise ConfigError(f"a custom language model also needs {', '.join(missing)}")
    return DecoderConfig(**shapes)  # type: ignore[arg-type]
