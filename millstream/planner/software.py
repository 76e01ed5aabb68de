"""How well the kernels of a program use a device: few numbers per program, each fitted to a measurement.

Two things differ between programs that do the same products: how often they walk over the activations between
the products, and how close their convolutions come to the rates of `hardware.py`. Fitted on an H200 to the milliseconds
in `source`, the last on a processor. `plan calibrate` measures rates, and on a processor fits these numbers too.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    name: str
    passes: float
    """Reads or writes of a chunk's activations [tokens, width] per block, beside products and attention."""
    conv_share: float
    """What its convolutions reach of the rates of `hardware.py`; above 1 where they are its own."""
    vae_passes: float
    """Reads or writes of each convolution's output in the VAE, beside the convolution."""
    launches: float
    """Kernels per block that the host launches one by one; 0 when a graph replays them. A processor pays for each."""
    source: str


SOFTWARE = {
    kind.name: kind
    for kind in (
        Software(
            name="reference",
            passes=260,
            conv_share=0.82,
            vae_passes=50,
            launches=80,
            source="published eager inference: 1.3B 480x832 window 9 371 ms, 14B 320x576 718 ms, VAE 245 ms",
        ),
        Software(
            name="eager",
            passes=190,
            conv_share=1.0,
            vae_passes=35,
            launches=55,
            source="1.3B 480x832 window 9 312 ms, 14B 320x576 659 ms, VAE 185 ms",
        ),
        Software(
            name="compiled",
            passes=47,
            conv_share=1.0,
            vae_passes=0.5,
            launches=0,
            source="blocks compiled, CUDA graphs: 234 ms, 518 ms, VAE 92 to 96 ms",
        ),
        Software(
            name="fused",
            passes=17,
            conv_share=1.4,
            vae_passes=0.5,
            launches=0,
            source="hand-written kernels, own convolution: 216 ms, 491 ms, VAE 67 ms",
        ),
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


def find_software(name: str) -> Software:
    if name not in SOFTWARE:
        raise ConfigError(f"software {name!r} is unknown; known: {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
