"""How well the kernels of a program use a device: few numbers per program, each with where it comes from.

Programs that do the same matmuls differ in how often they walk over the activations between them, in how
close their attention and convolutions come to the rates of `hardware.py`, and in what they hold besides. This
engine is one program with several paths, put together by `software_of`; others are there to compare with.
`plan calibrate` measures rates, and on a processor fits these numbers too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millstream.core.errors import ConfigError
from millstream.core.speed import ALL, Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    name: str
    passes: float
    """Reads or writes of a chunk's activations [tokens, width] per block, beside matmuls and attention."""
    fp8_passes: float = 0.0
    """Passes that fp8 adds to `passes`; below 0 where rows are written in bytes."""
    fp8_hidden_passes: float = 0.0
    """Passes that fp8 adds over the MLP's hidden values, where their activation is no longer fused into a
    matmul."""
    attention_kernel: str = "best"
    """Attention kernel: `best` (the best library in bf16), `flash2` (FlashAttention 2) or `sage2`
    (SageAttention 2)."""
    attention_share: float = 1.0
    """Share of the kernel's rate that attention over a window reaches."""
    conv_share: float
    """Share of the rates of `hardware.py` that convolutions reach; above 1 where fewer operations are
    needed."""
    own_conv_share: float | None = None
    """Share that the program's own convolution reaches where it runs, if there is one."""
    vae_passes: float
    """Reads or writes of each convolution's output in the VAE, beside the convolution."""
    deep_vae_passes: float | None = None
    """Reads or writes of each convolution's output in a VAE over time, Wan's, where that was fitted apart
    from Brook's."""
    launches: float
    """Kernels per block that the host launches one by one; 0 when a graph replays them. A processor pays for
    each."""
    host_ms: float = 0.0
    """Milliseconds of each chunk while no network runs: numbers to the host and back, bookkeeping, conversion
    of pictures."""
    pace_ms: float = 0.0
    """The host's own work on a chunk, beside the device's, as one host was measured: it stands in for hosts
    in general, where another host of the same kind of card took three quarters of it. A plan that waits for
    it carries `HOST_BAND`."""
    gathers_weights: bool = False
    """On several devices each holds its share of the weights, and gathers the others' for every call."""
    prompt_tokens: int = 64
    """Tokens that its text encoder reads: a prompt of some forty words, or all that it is filled up to."""
    band: float = 0.0
    """How far a time may be off because of the program, each way: others' are known from a point or two."""
    fast_blocks: bool = False
    """Its blocks are the fast path's, with a working set of their own."""
    canvases: bool = False
    """Its decoder keeps the inputs of its convolutions between chunks."""
    packs_window: bool = False
    """Its attention reads a copy of the window in 8 bits, kept beside it."""
    graphs: bool = False
    """Its calls are recorded, and what they use in between is reserved for good."""
    source: str


# Fitted to one stream, plain: 1.3B at 480x832, window 9, on an H200: a call 60.5 ms, decode 205 ms, 6 ms
# beside them.
_PLAIN = Software(
    name="eager",
    passes=156,
    # keys as they are against a round number of them: 544 to 585 TFLOP/s, and 538 to 564
    attention_share=0.94,
    conv_share=0.83,  # in the default layout against channels-last
    vae_passes=44,
    launches=55,
    host_ms=6.0,
    source="this engine, plain, 1.3B 480x832 window 9: DiT 301 ms, decode 205 ms",
)
# Fitted to the same stream, fast, in bf16: a call 45.6 ms, decode 68.1 ms; fp8 is counted from what its
# kernels read and write.
_FAST = Software(
    name="fast",
    passes=25,
    fp8_passes=-2.5,  # five results of norms and attention in one byte instead of two
    fp8_hidden_passes=1.5,  # the activation: reads two bytes, writes one
    conv_share=1.05,  # nearest doubling and a 3x3 convolution are one 2x2 convolution in four phases
    own_conv_share=1.49,  # 738 to 450 TFLOP/s at 96 channels, 782 to 598 at 192
    vae_passes=7,
    launches=25,
    host_ms=0.5,
    # fitted: Brook at 256x256, 1,890 frames a second beside one H200; beside another 2,450, 4.9 ms
    pace_ms=6.3,
    fast_blocks=True,
    canvases=True,
    graphs=True,
    source="this engine, fast, 1.3B 480x832 window 9 in bf16: DiT 225 ms, decode 68 ms",
)
_EVEN_WAVES_SHARE = 1.1
"""Attention in even waves against one call; fitted to the same stream in bf16: a chunk in 284 ms instead of
291 to 295."""
_LOW_ATTENTION_SHARE = 1.2
"""Attention in 8 bits against bf16, packing included; fitted to the same stream in fp8: calls 172 ms instead
of 192."""


def software_of(speed: Speed) -> Software:
    """This engine with these speed-ups on a GPU."""
    blocks, vae = (_FAST if on else _PLAIN for on in (speed.blocks, speed.decoder))
    return Software(
        name=_name(speed),
        passes=blocks.passes,
        fp8_passes=blocks.fp8_passes,
        fp8_hidden_passes=blocks.fp8_hidden_passes,
        attention_share=_attention_share(speed),
        conv_share=vae.conv_share,
        own_conv_share=vae.own_conv_share if speed.own_convolution else None,
        vae_passes=vae.vae_passes,
        launches=0 if speed.graphs else blocks.launches,
        host_ms=blocks.host_ms,
        pace_ms=blocks.pace_ms,
        fast_blocks=speed.blocks,
        canvases=speed.decoder,
        packs_window=speed.low_attention,
        graphs=speed.graphs,
        source="; ".join(dict.fromkeys((blocks.source, vae.source))),
    )


def _attention_share(speed: Speed) -> float:
    if speed.low_attention:
        return _LOW_ATTENTION_SHARE
    if speed.even_waves:
        return _EVEN_WAVES_SHARE
    return _FAST.attention_share if speed.round_keys else _PLAIN.attention_share


def _name(speed: Speed) -> str:
    """`eager`, `fast`, `fast` with one thing more or less, or what is on."""
    on = [name for name in speed.names if name != "fp8"]
    missing = [f"-{name}" for name in ALL.names if name not in on]
    if not on:
        return "eager"
    return ",".join(
        on if len(missing) > 1 else ["fast", *missing, *(name for name in on if name not in ALL.names)]
    )


_OTHERS_BAND = 0.12
_EAGER_LAUNCHES = 480
"""Kernels a block of Self-Forcing's code, so many that the host is what a small call waits for; fitted to its
frame by frame stream on an H100, 8.9 frames a second."""
# Programs of others: walks over activations are fitted to one published point each (`fit` in
# benchmarks/published.toml), the attention they call is what they say or what alone explains that point;
# their VAE is the published one, uncompiled.
_PEERS: dict[str, dict[str, Any]] = {
    "wan": dict(
        passes=177,
        attention_kernel="flash2",
        gathers_weights=True,
        prompt_tokens=512,
        source="Wan2.1's own code: 14B 720x1280 on an A100, 3342.6 s",
    ),
    "diffusers": dict(
        passes=254, attention_kernel="flash2", source="diffusers: 14B 480x832 on an H100, 9.77 s a step"
    ),
    "xdit": dict(passes=163, attention_kernel="flash2", source="xDiT: 14B 480x832 on an H100, 8.93 s a step"),
    "fastvideo": dict(
        passes=249,
        attention_kernel="sage2",
        launches=515,
        source="FastVideo: 14B 480x832 on an H100, 7.35 s a step; 1.3B window 15 on a GB200, 374 ms a chunk",
    ),
    "sglang": dict(passes=117, source="SGLang diffusion: 14B 480x832 on an H100, 6.13 s a step"),
    "lightx2v": dict(
        passes=14, attention_kernel="sage2", source="LightX2V: 14B 480x832 on an H100, 5.18 s a step"
    ),
    "krea": dict(
        passes=488,
        source="Krea's pipeline in Scope: 14B 480x832 on an H100, FlashAttention 2, 3.6 frames a second",
    ),
    "flashdreams": dict(
        passes=109,
        launches=290,
        source="FlashDreams: 1.3B 480x832 window 9, 4 steps, on an A100, 642.7 ms, and on a GB200, 214.3 ms",
    ),
}


def _peer(name: str, *, launches: float = _EAGER_LAUNCHES, **numbers: Any) -> Software:
    return Software(
        name=name, launches=launches, conv_share=0.66, vae_passes=50, band=_OTHERS_BAND, **numbers
    )


SOFTWARE = {
    kind.name: kind
    for kind in (
        software_of(Speed()),
        software_of(ALL),
        Software(
            name="reference",
            passes=260,
            attention_share=_PLAIN.attention_share,
            conv_share=0.66,
            vae_passes=50,
            launches=_EAGER_LAUNCHES,
            band=_OTHERS_BAND,
            source="published eager inference: 1.3B 480x832 window 9 371 ms, 14B 320x576 718 ms, VAE 245 ms",
        ),
        Software(
            name="compiled",
            passes=47,
            conv_share=0.81,
            vae_passes=0.5,
            launches=0,
            source="a prototype, blocks compiled, CUDA graphs: 234 ms, 518 ms, VAE 92 to 96 ms",
        ),
        *(_peer(name, **numbers) for name, numbers in _PEERS.items()),
        Software(
            name="processor",
            passes=270,
            conv_share=1.0,
            vae_passes=11,
            launches=55,
            source="Brook at 256x256 on one x86 core, best of 12 chunks: DiT 643 ms, decode 387 ms",
        ),
    )
}


def without_fast_decoder(software: Software) -> Software:
    """Like `software`, but its decoder is the plain one: for VAEs that our fast path does not know."""
    if not software.canvases:
        return software
    return replace(
        software,
        conv_share=_PLAIN.conv_share,
        own_conv_share=None,
        vae_passes=_PLAIN.vae_passes,
        canvases=False,
    )


def find_software(name: str) -> Software:
    if name not in SOFTWARE:
        raise ConfigError(f"software {name!r} is unknown; known: {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
