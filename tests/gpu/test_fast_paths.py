"""Every fast path against the plain one, compiled and on the card. Skipped elsewhere, with the reason."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.core.config import DiTConfig, VAEConfig
from millstream.core.speed import ALL, FP8_GROUPS, Speed
from millstream.engine.engine import Engine
from millstream.models.dit import CausalDiT
from millstream.models.fast import attention as fast_attention
from millstream.models.fast.apply import quicken
from millstream.models.fast.graph_memsets import MemsetReplacer
from millstream.models.joint import JointMemory, join_prompts
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.models.wan.fast_vae import FastVAE
from millstream.ops.attention import AttentionShare, attend, attend_in_shares
from millstream.ops.backend import only_twins
from millstream.ops.conv3 import PAST, SLICES, TAPS, find_convolution
from millstream.ops.fp8 import Rows8
from millstream.ops.noise import gaussian, gaussian_rows
from millstream.ops.pictures import copy_frames, merge_onto, split_frames, sum_taps, to_pictures
from millstream.ops.pixels import to_bytes
from millstream.ops.ring_write import put_heads, turn_heads, write_ring
from millstream.ops.rope import frame_phases
from millstream.ops.rows import add_gated, add_norm, finish_attention, gelu_rows, join_heads, norm_query
from millstream.ops.waves import Waves, waves_of
from tests.unit.models_for_tests import dit, relative_error, vae

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

GPU = torch.device("cuda")
BF16 = torch.bfloat16
DIT = DiTConfig(layers=3, width=256, heads=2, ffn=512, channels=16, text_width=64, text_tokens=128)
GRID = (6, 10)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device=GPU).to(BF16)


def restored(found: Tensor | Rows8) -> Tensor:
    return found.restored() if isinstance(found, Rows8) else found.float()


@pytest.mark.parametrize("width", [1536, 5120])
@pytest.mark.parametrize("fp8", [False, True])
def test_rows_equal_their_twins(width: int, fp8: bool) -> None:
    x = random(96, width)
    y = random(96, width)
    levels = random(3, 6, width)
    weight = random(width)
    bias = random(width)
    lse = torch.rand(width // 128, 96, device=GPU) + 6
    tolerance = 0.02 if fp8 else 4e-3

    def everything() -> list[Tensor]:
        kept = x.clone()
        added = x.clone()
        add_gated(added, y, levels[:, 5])
        return [
            added.float(),
            restored(add_norm(kept, None, None, levels[:, 1], levels[:, 0], eps=1e-6, fp8=fp8)),
            restored(add_norm(kept, y, levels[:, 2], weight, bias, eps=1e-6, fp8=fp8, later_D=weight)),
            restored(add_norm(kept, y, None, levels[:, 4], levels[:, 3], eps=1e-6, fp8=fp8)),
            kept.float(),
            restored(finish_attention([AttentionShare(x[None, None], lse[None, None])], 40, fp8=fp8)),
            norm_query(x, weight, eps=1e-6).float(),
            gelu_rows(y).restored(),
        ]

    found = everything()
    with only_twins():
        expected = everything()
    assert all(relative_error(a, b) <= tolerance for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("heads", "queries", "keys"), [(12, 4680, 14040), (40, 2160, 4320)], ids=["1.3B", "14B"]
)
@torch.inference_mode()
def test_attention_in_even_waves_is_as_exact_as_in_one_call(heads: int, queries: int, keys: int) -> None:
    q, k, v = (
        random(1, count, heads, 128) for count in (queries, -(-keys // 128) * 128, -(-keys // 128) * 128)
    )
    k[:, keys:] = 0
    v[:, keys:] = 0
    waves = waves_of(q, k)
    if waves is None:
        pytest.skip("waves were counted on Hopper cards, and on one with as many processors as an H200")
    rest = slice(waves.queries, None)
    whole, apart = (
        finish_attention(attend_in_shares(q, k, v, how), k.shape[1] - keys, fp8=False)
        for how in (None, waves)
    )
    a, b, c = (x.float().transpose(1, 2) for x in (q[:, rest], k[:, :keys], v[:, :keys]))
    exact = F.scaled_dot_product_attention(a, b, c).transpose(1, 2)[0].flatten(1)
    assert torch.equal(apart[: waves.queries], whole[: waves.queries])
    assert relative_error(apart[rest].float(), exact) <= 1.5 * relative_error(whole[rest].float(), exact)


@torch.inference_mode()
def test_words_are_zeroed_by_kernels_to_the_same_bits() -> None:
    q = random(1, 1024, 12, 128)
    k = random(1, 2048, 12, 128)
    v = random(1, 2048, 12, 128)
    expected = attend(q, k, v)
    out = torch.empty_like(q)
    zeroer = MemsetReplacer.on(torch.device("cuda", 0))
    if zeroer is None:
        pytest.skip("the driver's Python interface is not installed, or older than 13")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        out.copy_(attend(q, k, v))
    assert zeroer.change(graph.raw_cuda_graph()) > 0, "cuDNN counts its tiles in a word"
    assert zeroer.change(graph.raw_cuda_graph()) == 0
    graph.instantiate()
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


@torch.inference_mode()
def test_heads_that_have_travelled_are_those_of_a_ring_that_was_written_at_once() -> None:
    """Shapes of the 1.3B over two ranks. Queries are read where they lie, between keys and values, and give
    the same bits."""
    tokens = 3 * 1560
    heads = 12
    parts = 2
    qkv = random(tokens, 3 * 128 * heads)
    weights = random(2, 128 * heads)
    phases = frame_phases(torch.tensor([900, 901, 902], device=GPU), (30, 52), 128)
    index = torch.arange(tokens, 2 * tokens, device=GPU)
    whole = [
        random(-(-3 * tokens // 128) * 128, heads, 128) for _ in range(2)
    ]  # a round number, as a ring has
    shares = [
        [each.unflatten(1, (parts, -1))[:, part].contiguous() for each in whole] for part in range(parts)
    ]
    (queries,) = write_ring(qkv[None], *weights, phases, index, *(each[None] for each in whole), eps=1e-6)
    answers = []
    for part, turned_L3MH in enumerate(turn_heads(qkv, *weights, phases, parts, eps=1e-6)):
        mine = slice(part * heads // parts, (part + 1) * heads // parts)
        put_heads(turned_L3MH, index, *shares[part])
        q, k, v = turned_L3MH[None, :, 0], *(each[None] for each in shares[part])
        assert relative_error(q[0].float(), queries[:, mine].float()) <= 4e-3
        assert all(
            relative_error(one.float(), all_[:, mine].float()) <= 4e-3
            for one, all_ in zip(shares[part], whole, strict=True)
        )
        for waves in (None, waves_of(q, k)):
            lying, copied = (
                finish_attention(attend_in_shares(each, k, v, waves), 0, fp8=True)
                for each in (q, q.contiguous())
            )
            assert torch.equal(restored(lying), restored(copied))
        answers.append(attend(q, k, v)[0].flatten(1))
    for fp8 in (False, True):
        joined = join_heads(torch.stack(answers), fp8=fp8)
        assert relative_error(restored(joined), torch.cat(answers, dim=1).float()) <= (0.05 if fp8 else 0)


@pytest.mark.parametrize("heads", [12, 40])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_written_ring_equals_its_twin(heads: int, batch: int) -> None:
    qkv = random(batch, 180, 3 * 128 * heads)
    weight_q = random(128 * heads)
    weight_k = random(128 * heads)
    phases = frame_phases(torch.tensor([900, 901, 902], device=GPU), GRID, 128)
    index = torch.randperm(400, device=GPU)[:180]

    def written() -> Tensor:
        k, v = (torch.zeros(batch, 400, heads, 128, device=GPU, dtype=BF16) for _ in range(2))
        q = write_ring(qkv, weight_q, weight_k, phases, index, k, v, eps=1e-6)
        return torch.cat([q, k, v], dim=1).float()

    found = written()
    with only_twins():
        assert relative_error(found, written()) <= 4e-3


@pytest.mark.parametrize("channels", [96, 192, 384])
def test_pictures_equal_their_twins(channels: int) -> None:
    whole = random(4, 6, 10, channels)
    phases = random(4, 4, 6, 4, channels)
    residual = random(4, 6, 10, channels)
    bias = random(channels)
    weight = random(channels)
    double = random(4, 6, 10, 2 * channels)
    planes = 0.1 * random(TAPS * 3 + 7, 6, 8, 12)
    of_three = random(3)

    def everything() -> list[Tensor]:
        canvases = [
            torch.zeros(4 + PAST, 6 + 2 * pad, 10 + 2 * pad, channels, device=GPU, dtype=BF16)
            for pad in (0, 1)
        ]
        kept = merge_onto(whole, bias, residual, weight, canvases[0], keep=True)
        merge_onto(phases, bias, None, weight, canvases[1], pad=1)
        assert kept is not None
        edged, after_one = (torch.zeros(4 + past, 7, 11, channels, device=GPU, dtype=BF16) for past in (0, 1))
        merge_onto(whole, bias, residual, None, edged, past=0)
        merge_onto(whole, bias, None, None, after_one, past=1)
        split = split_frames(double, torch.cat([bias, bias]))
        return [x.float() for x in (kept, *canvases, edged, after_one, split, sum_taps(planes, of_three, 4))]

    found = everything()
    with only_twins():
        expected = everything()
    assert all(relative_error(a, b) <= 5e-3 for a, b in zip(found, expected, strict=True))


def test_every_number_becomes_the_same_byte() -> None:
    numbers = torch.arange(1 << 16, dtype=torch.int32, device=GPU).to(torch.int16).view(BF16)
    numbers = numbers[numbers.isfinite()]
    planes = numbers[: len(numbers) // 6 * 6].view(1, 3, 2, -1)
    random_planes = torch.rand(3, 4, 60, 104, device=GPU).mul(2.2).sub(1.1).transpose(0, 1)
    for pixels in (planes, planes.float(), random_planes, random_planes.to(BF16)):
        assert torch.equal(to_pictures(pixels), to_bytes(pixels).permute(0, 2, 3, 1))


@pytest.mark.parametrize("channels", [3, 96, 192])
def test_frames_are_copied_into_a_rim_and_out_of_it_to_the_bit(channels: int) -> None:
    frames = torch.randint(-(2**15), 2**15, (2, 60, 104, channels), dtype=torch.int16, device=GPU).view(BF16)
    canvas = torch.zeros(6, 62, 106, channels, device=GPU, dtype=BF16)
    copy_frames(canvas[:2, 1:-1, 1:-1], frames)
    back = torch.empty_like(frames)
    copy_frames(back, canvas[:2, 1:-1, 1:-1])
    assert torch.equal(back.view(torch.int16), frames.view(torch.int16))
    canvas[:2, 1:-1, 1:-1] = 0
    assert not canvas.any(), "the rim stays zero"


@pytest.mark.parametrize("channels", SLICES)
@pytest.mark.parametrize("size", [(3, 60, 104), (1, 7, 65), (2, 33, 130)])
def test_our_convolution_equals_the_librarys(channels: int, size: tuple[int, int, int]) -> None:
    own = find_convolution()
    if own is None:
        pytest.skip("our convolution cannot be built here")
    frames, rows, columns = size
    weight = random(channels, channels, 3, 3, 3) * (27 * channels) ** -0.5
    canvas = torch.zeros(frames + PAST, rows + 2, columns + 2, channels, device=GPU, dtype=BF16)
    canvas[:, 1:-1, 1:-1] = random(frames + PAST, rows, columns, channels)
    packed = own.pack(weight)
    assert packed is not None
    expected = F.conv3d(canvas[None].permute(0, 4, 1, 2, 3).float(), weight.float())[0].permute(1, 2, 3, 0)
    assert relative_error(own(canvas, packed).float(), expected) <= 5e-3


def test_noise_in_one_kernel_is_the_same_noise() -> None:
    name = dict(seed=2**40 + 3, epoch=2, chunk=70_000, step=1)
    found = gaussian((1, 3, 16, 60, 104), **name, device=GPU).cpu()
    assert torch.allclose(found, gaussian((1, 3, 16, 60, 104), **name), atol=1e-5)


def test_noise_of_many_rows_is_each_ones_own() -> None:
    seeds = torch.tensor([3, 2**40 + 3], device=GPU)
    name = dict(epoch=2, chunk=7, step=1)
    found = gaussian_rows((3, 16, 60, 104), seeds, **name)
    each = [gaussian((3, 16, 60, 104), seed=seed, **name, device=GPU) for seed in seeds.tolist()]
    assert torch.equal(found, torch.stack(each))


def ring(*, sink: int = 0, positions: str = "absolute") -> KVRing:
    shape = RingShape(
        layers=DIT.layers,
        heads=DIT.heads,
        head_width=DIT.head_width,
        grid=GRID,
        window=7,
        sink=sink,
        positions=positions,
    )
    return KVRing(shape, device=GPU, dtype=BF16)


@torch.inference_mode()
def chunks(model: CausalDiT, memory: KVRing, count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    found = []
    for number in range(count):
        if number % 9 == 0:
            cross = model.read_prompt(torch.randn(1, 128, 64, generator=generator).to(GPU, BF16))
        memory.place(list(range(3 * number, 3 * number + 3)))
        latents = torch.randn(1, 3, 16, 12, 20, generator=generator).to(GPU, BF16)
        found.append(model(latents, torch.full((1, 3), 700.0, device=GPU), memory, cross))
        model.commit(latents, torch.zeros(1, 3, device=GPU), memory, cross)
    return torch.cat(found).float()


@pytest.mark.parametrize(
    ("speed", "tolerance"),
    [
        (Speed(blocks=True), 0.02),
        (Speed(blocks=True, round_keys=True), 0.02),
        (Speed(blocks=True, round_keys=True, even_waves=True), 0.02),
        (Speed(blocks=True, round_keys=True, even_waves=True, fp8=FP8_GROUPS), 0.08),
    ],
    ids=["blocks", "round keys", "even waves", "fp8"],
)
@pytest.mark.parametrize("kind", [{}, dict(sink=2, positions="windowed")], ids=["ring", "sink"])
def test_fast_blocks_equal_plain_ones(
    speed: Speed, tolerance: float, kind: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_attention, "waves_of", lambda q, k: Waves(128, k.shape[1] // 128))
    model = dit(DIT).to(GPU, BF16)
    expected = chunks(deepcopy(model), ring(**kind))
    assert relative_error(chunks(quicken(model, speed), ring(**kind)), expected) <= tolerance


@pytest.mark.parametrize("fp8", [(), FP8_GROUPS], ids=["bf16", "fp8"])
def test_recorded_calls_give_the_same_bits(fp8: tuple[str, ...]) -> None:
    model = dit(DIT).to(GPU, BF16)
    speed = Speed(blocks=True, round_keys=True, fp8=fp8)
    expected = chunks(quicken(deepcopy(model), speed), ring(), 24)
    fast = quicken(model, replace(speed, graphs=True))
    assert torch.equal(chunks(fast, ring(), 24), expected)
    assert len(fast.blocks._recordings) == 2


@torch.inference_mode()
def test_sessions_that_share_calls_stay_apart() -> None:
    fast = quicken(dit(DIT).to(GPU, BF16), Speed(blocks=True, round_keys=True))
    rings = [ring(), ring()]
    prompts = [fast.read_prompt(random(1, 128, 64)) for _ in range(2)]
    for each in rings:
        each.place([0, 1, 2])
    rings[1].place([3, 4, 5])
    latents = random(2, 3, 16, 12, 20)
    level = torch.full((2, 3), 700.0, device=GPU)
    alone = [fast(latents[i : i + 1], level[:1], rings[i], prompts[i]) for i in range(2)]
    together = fast(latents, level, JointMemory(rings), join_prompts(prompts))
    assert relative_error(together.float(), torch.cat(alone).float()) <= 0.02


@pytest.mark.parametrize("own", [False, True])
@torch.inference_mode()
def test_the_fast_decoder_equals_the_plain_one(own: bool) -> None:
    model = vae(VAEConfig()).to(GPU, BF16)
    latents = random(1, 6, 16, 8, 12)
    first, state = model.decode(latents[:, :3])
    second, _ = model.decode(latents[:, 3:], state)
    fast = FastVAE(model, find_convolution() if own else None)
    found_first, state = fast.decode(latents[:, :3])
    found_second, _ = fast.decode(latents[:, 3:], state)
    assert relative_error(found_first.float(), first.float()) <= 0.03
    assert relative_error(found_second.float(), second.float()) <= 0.03


@pytest.mark.parametrize("own", [False, True])
@torch.inference_mode()
def test_the_fast_encoder_equals_the_plain_one(own: bool) -> None:
    model = vae(VAEConfig()).to(GPU, BF16)
    pixels = (torch.rand(1, 21, 3, 64, 96, device=GPU) * 2 - 1).to(BF16)
    first, state = model.encode(pixels[:, :9])
    second, _ = model.encode(pixels[:, 9:], state)
    fast = FastVAE(model, find_convolution() if own else None)
    found_first, state = fast.encode(pixels[:, :9])
    found_second, _ = fast.encode(pixels[:, 9:], state)
    assert relative_error(found_first.float(), first.float()) <= 0.03
    assert relative_error(found_second.float(), second.float()) <= 0.03


@torch.inference_mode()
def test_passes_on_two_streams_do_not_paint_over_each_other() -> None:
    fast = FastVAE(vae(VAEConfig()).to(GPU, BF16))
    beside = torch.cuda.Stream()
    one, other = random(2, 1, 3, 16, 16, 24).unbind(0)
    _, state = fast.decode(one)
    expected = [fast.decode(latents, state)[0] for latents in (one, other)]
    torch.cuda.synchronize()
    found = []
    for _ in range(4):
        with torch.cuda.stream(beside):
            there = fast.decode(other, state)[0]
        found.append((fast.decode(one, state)[0], there))
    torch.cuda.synchronize()
    assert all(
        relative_error(a.float(), b.float()) <= 5e-3
        for pair in found
        for a, b in zip(pair, expected, strict=True)
    )


def test_the_same_seed_gives_the_same_bits_with_everything_on() -> None:
    engine = Engine("wan-mini", weights="random", device="cuda", dtype="bfloat16", speed=ALL)
    runs = [[chunk.digest for chunk in engine.session("sea", seed=4).stream(6)] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@torch.inference_mode()
def test_fast_calls_never_wait_for_the_device() -> None:
    model = quicken(dit(DIT).to(GPU, BF16), Speed(blocks=True, round_keys=True, fp8=FP8_GROUPS))
    memory = ring()
    cross = model.read_prompt(random(1, 128, 64))
    latents = random(1, 3, 16, 12, 20)
    level = torch.zeros(1, 3, device=GPU)
    memory.place([0, 1, 2])
    model(latents, level, memory, cross)
    torch.cuda.set_sync_debug_mode("error")
    try:
        memory.place([3, 4, 5])
        model(latents, level, memory, cross)
        model.commit(latents, level, memory, cross)
    finally:
        torch.cuda.set_sync_debug_mode("default")
