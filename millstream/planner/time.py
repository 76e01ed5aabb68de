"""How long a chunk takes on one replica: phase by phase, for every layout, serialised and overlapped.

One operation takes `max(flops / rate, bytes / bandwidth)`, a block at least its launches. Collectives are
alpha-beta. Knows no sessions and no prices: `search.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from millstream.core.chunk_work import Product, attention_flops, block_products
from millstream.core.config import TEMPORAL_STRIDE, BrookVAEConfig, VAEConfig
from millstream.core.topology import Topology
from millstream.core.vae_layers import Conv, decoder_convs, encoder_convs, tiny_decoder_convs
from millstream.planner.cards.weights import unpacking_bytes
from millstream.planner.communication import all_gather, all_reduce, all_to_all, point_to_point
from millstream.planner.hardware import DEVICES, PCIE4, Device, Fleet, Link
from millstream.planner.memory import text_parameters
from millstream.planner.software import Software
from millstream.planner.workload import Workload

_TILES = ((128, 256, 1.0), (128, 128, 0.9))
"""Rows and columns that a multiprocessor takes at a time, and what such a kernel reaches of the best."""
_CROSS_SHARE = 0.82
"""Attention over the few keys of a prompt, against attention over a window."""
_SHARDED_PASSES = 0.5
"""Share of the passes over activations that TP divides: those over heads and the MLP. Norms and residuals are
repeated on every TP rank."""
_TINY_PASSES = 4
"""Reads or writes of each convolution's output in the tiny decoder, beside the convolution: activation,
doubling, joining."""
_HOST = DEVICES["laptop-cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTime:
    """One model call, milliseconds on the rank that takes longest."""

    products: float
    attention: float
    elementwise: float
    communication: float

    @property
    def total(self) -> float:
        return self.products + self.attention + self.elementwise + self.communication


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkTime:
    """One chunk of one batch on one replica, milliseconds."""

    call: CallTime
    calls: float
    """Full calls a chunk costs; a commit stops at the last layer's keys."""
    encode_ms: float
    decode_ms: float
    host_ms: float
    """While no network runs."""
    host_pace_ms: float
    """Time the host takes for a chunk while networks run: chunks come no quicker than that."""
    transport_ms: float
    mesh_ms: float
    """From envelope to latents, alone on the mesh."""
    busy_ms: float
    """Time the busiest device spends on a chunk: the period when enough chunks are in flight."""
    period_ms: float
    """Between two chunks of one session, front and mesh overlapped where they are apart."""
    serialised_ms: float
    """Time of a chunk if front and mesh each waited for the other."""
    first_frame_ms: float

    @property
    def front_ms(self) -> float:
        return self.encode_ms + self.decode_ms + self.host_ms


def chunk_time(work: Workload, fleet: Fleet, layout: Topology) -> ChunkTime:
    call = call_time(work, fleet, layout, keys=work.window_tokens)
    calls = work.step_calls + work.rebuilds + work.commits * (1 - 1 / work.spec.dit.layers)
    encode = work.batch * encode_ms(work, fleet.device) if work.encodes else 0.0
    decode = work.batch * decode_ms(work, fleet.device)
    host = work.batch * work.software.host_ms
    hops = layout.pp - 1
    boundary = point_to_point(_activation_bytes(work, fleet.device), fleet.link_between(layout.mesh_size))
    mesh = calls * (call.total + hops * boundary)
    transport = _transport_ms(work, fleet, layout)
    busy = _busy(calls * call.total, calls * boundary if hops else 0.0, encode, decode + host, layout, work)
    front = encode + decode + host
    alone = mesh + transport if layout.front_apart else front + mesh
    period = max(front, alone) if layout.front_apart else alone
    if work.stream_batch and layout.pp > 1:
        period = busy
    pace = 0.0 if fleet.device.processor else work.batch * work.software.pace_ms
    assert 0 < period < math.inf, f"a chunk on {layout} takes {period} ms"
    return ChunkTime(
        call=call,
        calls=calls,
        encode_ms=encode,
        decode_ms=decode,
        host_ms=host,
        host_pace_ms=pace,
        transport_ms=transport,
        mesh_ms=mesh,
        busy_ms=max(busy, pace),
        period_ms=max(period, pace),
        serialised_ms=front + mesh + transport,
        first_frame_ms=_first_frame(work, fleet, layout, hops * boundary) + transport,
    )


def call_time(work: Workload, fleet: Fleet, layout: Topology, *, keys: int) -> CallTime:
    """One call over `keys` keys. Under stream batch all noise levels of a chunk share the call, which then
    counts a share."""
    dit = work.spec.dit
    device = fleet.device
    shared = work.calls if work.stream_batch else 1
    tokens = work.batch * shared * work.rank_tokens(layout)
    needed = block_products(dit, tokens, tp=layout.tp)
    products = sum(product_ms(p, device, fp8=work.precision == "fp8") for p in needed)
    unpacked = sum(p.weights for p in needed) * unpacking_bytes(work.weights, device.value_bytes)
    asked = attention_flops(tokens, dit.text_tokens, dit.width) / _CROSS_SHARE  # whole on every rank
    attended = attention_flops(tokens, keys, dit.width // layout.tp) / work.software.attention_share + asked
    share = head_share(tokens * layout.sp, dit.heads // layout.tp // layout.sp, device)
    attention = attended / device.rates.attention_rate(work.software.attention_kernel) / share / 1e9
    passes = _passes(work) * (1 - _SHARDED_PASSES + _SHARDED_PASSES / layout.tp)
    walked = passes * tokens * dit.width * device.value_bytes + unpacked
    elementwise = walked / device.rates.bandwidth_tb_s / 1e9
    launches = work.software.launches * device.rates.launch_us / 1e3
    if device.processor:
        elementwise += launches  # it is itself what would run ahead
    else:
        elementwise = max(elementwise, launches - products - attention)
    link = fleet.link_between(layout.mesh_size)
    talk = _block_communication(work, tokens, layout, link, device.value_bytes)
    if work.software.gathers_weights:
        talk += all_gather(sum(p.weights for p in needed) * device.value_bytes, layout.mesh_size, link)
    scale = dit.layers / shared
    return CallTime(
        products=products * scale,
        attention=attention * scale,
        elementwise=elementwise * scale,
        communication=talk * scale,
    )


def _passes(work: Workload) -> float:
    """Walks over activations of the model's width, per block."""
    software = work.software
    dit = work.spec.dit
    if work.precision != "fp8":
        return software.passes
    return software.passes + software.fp8_passes + software.fp8_hidden_passes * dit.ffn / dit.width


def product_ms(product: Product, device: Device, *, fp8: bool) -> float:
    rates = device.rates
    quick = rates.fp8_tflops if fp8 else rates.matmul_tflops
    assert quick is not None, f"{device.name} has no fp8"
    share = wave_share(product.rows, product.outer, device.multiprocessors) if not device.processor else 1.0
    moved = product.rows * (product.inner + product.outer) * device.value_bytes
    moved += product.inner * product.outer * (1 if fp8 else device.value_bytes)
    return max(product.flops / quick / share, product.count * moved / rates.bandwidth_tb_s) / 1e9


def wave_share(rows: int, columns: int, multiprocessors: int) -> float:
    """Return the share of the peak that is left when the last wave of tiles does not fill the device."""
    shares = []
    for tile_rows, tile_columns, quality in _TILES:
        tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
        waves = math.ceil(tiles / multiprocessors)
        shares.append(quality * rows * columns / (waves * multiprocessors * tile_rows * tile_columns))
    share = max(shares)
    assert 0 < share <= 1, f"{rows} x {columns} reach {share} of the peak"
    return share


def head_share(queries: int, heads: int, device: Device) -> float:
    """Return the share of the peak that is left to attention, where a multiprocessor takes 128 queries of one
    head at a time."""
    if device.processor:
        return 1.0
    assert heads > 0, f"{heads} heads of {queries} queries on a rank"
    waves = math.ceil(math.ceil(queries / 128) * heads / device.multiprocessors)
    return queries * heads / (waves * device.multiprocessors * 128)


def decode_ms(work: Workload, device: Device) -> float:
    stream = work.stream
    if work.decoder == "tiny":
        return _tiny_ms(
            tiny_decoder_convs(work.spec.dit.channels, stream.frames_per_chunk, stream.height, stream.width),
            device,
        )
    return _own_decode_ms(
        work.spec.vae, stream.frames_per_chunk, stream.height, stream.width, work.vae_software, device
    )


@lru_cache(maxsize=256)
def _own_decode_ms(
    vae: VAEConfig | BrookVAEConfig, frames: int, height: int, width: int, software: Software, device: Device
) -> float:
    """However many layouts are tried on a device, its VAE takes as long."""
    return _convs_ms(decoder_convs(vae, frames, height, width), software, device)


def _tiny_ms(convs: Sequence[Conv], device: Device) -> float:
    rates = device.rates
    written = sum(conv.outer * conv.frames * conv.rows * conv.columns for conv in convs) * device.value_bytes
    computed = sum(conv.flops / rates.conv_rate(min(conv.inner, conv.outer), deep=False) for conv in convs)
    return (computed + _TINY_PASSES * written / rates.bandwidth_tb_s) / 1e9


def encode_ms(work: Workload, device: Device) -> float:
    """Return the time to encode a chunk's frames, or only one of them: an anchor that is encoded again."""
    stream = work.stream
    share = 1.0 if work.video_in else 1 / (TEMPORAL_STRIDE * stream.frames_per_chunk)
    convs = encoder_convs(work.spec.vae, stream.frames_per_chunk, stream.height, stream.width)
    return share * _convs_ms(convs, work.vae_software, device)


def text_ms(work: Workload, device: Device) -> float:
    text = work.spec.text
    rates = (_HOST if work.text_place == "cpu" else device).rates
    parameters = text_parameters(text) - text.vocabulary * text.width  # a lookup costs nothing
    weights = parameters * device.value_bytes
    tokens = work.software.prompt_tokens * (2 if work.guidance else 1)
    compute = 2 * parameters * tokens / rates.matmul_tflops
    visit = point_to_point(weights, PCIE4) if work.text_place == "visiting" else 0.0
    return (
        max(compute, weights / rates.bandwidth_tb_s) / 1e9 + text.layers * 20 * rates.launch_us / 1e3 + visit
    )


def _convs_ms(convs: Sequence[Conv], software: Software, device: Device) -> float:
    rates = device.rates
    own = software.own_conv_share if device.own_convolution else None
    computed = sum(
        conv.flops / rates.conv_rate(min(conv.inner, conv.outer), deep=conv.deep) for conv in convs
    )
    written = sum(conv.outer * conv.frames * conv.rows * conv.columns for conv in convs) * device.value_bytes
    deep = software.deep_vae_passes if any(conv.deep for conv in convs) else None
    passes = software.vae_passes if deep is None else deep
    return (computed / (own or software.conv_share) + passes * written / rates.bandwidth_tb_s) / 1e9


def _block_communication(
    work: Workload, tokens: int, layout: Topology, link: Link, value_bytes: int
) -> float:
    """TP: two large all-reduces and a small one for the q/k norms. SP: q, k, v and the answer change
    hands."""
    large = tokens * work.spec.dit.width * value_bytes
    small = tokens * 2 * 4
    tensor = 2 * all_reduce(large, layout.tp, link) + all_reduce(small, layout.tp, link)
    return tensor + 4 * all_to_all(large, layout.sp, link)


def _busy(
    calls_ms: float, boundary_ms: float, encode: float, decode: float, layout: Topology, work: Workload
) -> float:
    """The busiest device. Stages hold whole layers; where the VAE shares them it sits at the ends and layers
    are rebalanced."""
    stage = calls_ms * math.ceil(work.spec.dit.layers / layout.pp) / work.spec.dit.layers + boundary_ms
    if layout.front_apart:
        return max(encode + decode, stage)
    if layout.pp == 1:
        return encode + decode + stage
    return max(encode, decode, (encode + decode + calls_ms) / layout.pp + boundary_ms)


def _first_frame(work: Workload, fleet: Fleet, layout: Topology, hops_ms: float) -> float:
    """Text, the first chunk's calls over its own keys, its decoding (nine frames of twelve)."""
    call = call_time(work, fleet, layout, keys=work.chunk_tokens)
    shown = 1.0 if work.whole_clip else 1 - (TEMPORAL_STRIDE - 1) / work.chunk_frames
    calls = calls_before_pictures(work, layout) * (call.total + hops_ms)
    return text_ms(work, fleet.device) + calls + shown * decode_ms(work, fleet.device) + work.software.host_ms


def calls_before_pictures(work: Workload, layout: Topology) -> int:
    """The first chunk's steps. A commit comes after them, unless ranks that share their device with the front
    make it at once."""
    return work.first_step_calls + (0 if layout.is_local or layout.front_apart else work.commits)


def _transport_ms(work: Workload, fleet: Fleet, layout: Topology) -> float:
    if not layout.front_apart:
        return 0.0
    height, width = work.stream.latent_size
    latents = (
        work.batch
        * work.stream.frames_per_chunk
        * work.spec.dit.channels
        * height
        * width
        * fleet.device.value_bytes
    )
    return 2 * point_to_point(latents, fleet.link_between(layout.num_devices))


def _activation_bytes(work: Workload, device: Device) -> float:
    return work.batch * work.chunk_tokens * work.spec.dit.width * device.value_bytes
