"""Hand-written kernels of a transformer block against their plain twins, in Triton's interpreter.

The interpreter checks the arithmetic and the masks; what the compiler makes of them is `tests/gpu`'s
business.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU is here: tests/gpu runs these kernels compiled", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton, which interprets kernels on a CPU")

from millstream.ops.attention import AttentionShare
from millstream.ops.fp8 import Rows8, quantise
from millstream.ops.frame_rows import RowsOfFrames
from millstream.ops.kernels.ring_write import (
    launch_mean_squares,
    launch_put_heads,
    launch_turn_heads,
    launch_write_ring,
)
from millstream.ops.kernels.rows import (
    launch_add_gated,
    launch_add_norm,
    launch_finish_attention,
    launch_gelu_rows,
    launch_join_heads,
    launch_norm_query,
)
from millstream.ops.ring_write import mean_squares, put_heads, turn_heads, write_ring
from millstream.ops.rope import frame_phases
from millstream.ops.rows import add_gated, add_norm, finish_attention, gelu_rows, join_heads, norm_query
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy, inside the interpreter

WIDTHS = [48, 64]
"""Not a power of two, and one."""
FRAMES = 3
TOKENS = 2


def agree(found: torch.Tensor | Rows8, expected: torch.Tensor | Rows8) -> bool:
    """To rounding. The interpreter's e4m3 loses the carry when it rounds up to a power of two: one value in
    thirty or so."""
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and relative_error(found, expected) <= 1e-6
    assert isinstance(found, Rows8)
    same = (found.restored() - expected.restored()).abs() <= 0.07 * expected.restored().abs()
    return relative_error(found.scales_L1, expected.scales_L1) <= 1e-6 and float(same.float().mean()) >= 0.9


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    "kind", ["modulated", "affine", "gated", "added", "gated affine", "affine later", "gated affine later"]
)
def test_add_norm_equals_its_twin(width: int, fp8: bool, kind: str) -> None:
    x, y = torch.randn(2, FRAMES * TOKENS, width).unbind()
    levels = torch.randn(FRAMES, 6, width)
    gate = levels[:, 2] if "gated" in kind else None
    scale, shift = torch.randn(2, width).unbind() if "affine" in kind else (levels[:, 1], levels[:, 0])
    update = y if "gated" in kind or kind == "added" else None
    later = torch.randn(width) if "later" in kind else None
    ours = x.clone()
    twins = x.clone()
    found = launch_add_norm(ours, update, gate, scale, shift, later, eps=1e-6, fp8=fp8)
    expected = add_norm(twins, update, gate, scale, shift, eps=1e-6, fp8=fp8, later_D=later)
    assert isinstance(found, Rows8) == fp8
    assert agree(found, expected)
    assert relative_error(ours, twins) <= 1e-6
    assert (update is None and later is None) == torch.equal(ours, x)
    if later is not None:
        without = x.clone()
        assert agree(found, add_norm(without, update, gate, scale, shift, eps=1e-6, fp8=fp8)), (
            "the norm has not seen it"
        )
        assert relative_error(ours, without + later) <= 1e-6


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("gated", [False, True])
def test_add_gated_equals_its_twin(width: int, gated: bool) -> None:
    x, y = torch.randn(2, FRAMES * TOKENS, width).unbind()
    gate = torch.randn(FRAMES, 6, width)[:, 5] if gated else None
    ours = x.clone()
    twins = x.clone()
    launch_add_gated(ours, y, gate)
    add_gated(twins, y, gate)
    assert relative_error(ours, twins) <= 1e-6
    assert not torch.equal(ours, x)


@pytest.mark.parametrize("width", WIDTHS)
def test_norm_query_equals_its_twin(width: int) -> None:
    q = torch.randn(5, width)
    weight = torch.randn(width)
    assert relative_error(launch_norm_query(q, weight, eps=1e-6), norm_query(q, weight, eps=1e-6)) <= 1e-6


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("num_zeros", [0, 3])
def test_finish_attention_equals_its_twin(fp8: bool, num_zeros: int) -> None:
    shares = [
        AttentionShare(torch.randn(parts, batch, tokens, 48), torch.randn(parts, batch, 4, tokens) + 4)
        for parts, batch, tokens in ((1, 1, 5), (3, 1, 2), (2, 3, 2), (1, 2, 3))
    ]
    found = launch_finish_attention(shares, num_zeros, fp8=fp8)
    assert len(found.restored() if isinstance(found, Rows8) else found) == 5 + 2 + 6 + 6
    assert agree(found, finish_attention(shares, num_zeros, fp8=fp8))


def test_answers_without_sums_are_only_rounded() -> None:
    share = AttentionShare(torch.randn(1, 2, 5, 48), None)
    assert torch.equal(finish_attention([share], 0, fp8=False), share.out_PBLD.flatten(0, 2))
    assert agree(launch_finish_attention([share], 0, fp8=True), finish_attention([share], 0, fp8=True))


@pytest.mark.parametrize("fp8", [False, True])
def test_heads_of_several_parts_become_rows_of_all(fp8: bool) -> None:
    parts = torch.randn(3, 5, 16)
    expected = torch.cat(list(parts), dim=1)
    for join in (launch_join_heads, join_heads):
        assert agree(join(parts, fp8=fp8), quantise(expected) if fp8 else expected)


@pytest.mark.parametrize("width", [80, 64, 96])
def test_gelu_rows_equals_its_twin(width: int) -> None:
    hidden = 3 * torch.randn(5, width)
    assert agree(launch_gelu_rows(hidden), gelu_rows(hidden))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("heads", "head"), [(2, 24), (3, 16), (4, 16)])
def test_write_ring_equals_its_twin(heads: int, head: int, batch: int) -> None:
    width = heads * head
    grid = (1, 2)
    phases = frame_phases(torch.tensor([4, 5, 9]), grid, head)
    qkv, (weight_q, weight_k) = torch.randn(batch, 6, 3 * width), torch.randn(2, width).unbind()
    index = torch.tensor([2, 3, 8, 9, 0, 1])
    rings = [torch.full((batch, 14, heads, head), 7.0)[:, :12] for _ in range(4)]
    found = launch_write_ring(qkv, weight_q, weight_k, phases, index, rings[0], rings[1], eps=1e-6)
    expected = write_ring(qkv, weight_q, weight_k, phases, index, rings[2], rings[3], eps=1e-6)
    assert relative_error(found, expected) <= 1e-6
    assert relative_error(rings[0], rings[2]) <= 1e-6
    assert torch.equal(rings[1], rings[3])
    assert (rings[0][:, [4, 5, 6, 7, 10, 11]] == 7.0).all(), "places that were not named stay as they are"


def test_norms_over_heads_that_others_have() -> None:
    """Half of the heads here, with mean squares that both halves have added to."""
    width = 48
    heads = 2
    head = 24
    qkv = torch.randn(2, 6, 3, 2 * width)
    weights = torch.randn(2, 2 * width)
    halves = [each.flatten(1).contiguous() for each in qkv[0].chunk(2, dim=-1)]
    added = [launch_mean_squares(half, 2 * width) for half in halves]
    for found, half in zip(added, halves, strict=True):
        assert relative_error(found, mean_squares(half, 2 * width)) <= 1e-6
    means = sum(added)
    phases = frame_phases(torch.tensor([4, 5, 9]), (1, 2), head)
    whole = [torch.empty(1, 6, 2 * heads, head) for _ in range(2)]
    expected = write_ring(qkv[0].flatten(1)[None], *weights, phases, torch.arange(6), *whole, eps=1e-6)
    for write in (launch_write_ring, write_ring):
        for place, half in enumerate(halves):
            mine = slice(place * heads, (place + 1) * heads)
            own = [torch.empty(1, 6, heads, head) for _ in range(2)]
            of_these = weights.unflatten(1, (2, width))[:, place].contiguous()
            found = write(
                half[None], *of_these, phases, torch.arange(6), *own, eps=1e-6, means_2BL=means[:, None]
            )
            assert relative_error(found, expected[:, :, mine]) <= 1e-6
            assert all(
                relative_error(one, other[:, :, mine]) <= 1e-6 for one, other in zip(own, whole, strict=True)
            )


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_heads_that_are_to_travel_lie_together(parts: int) -> None:
    heads = 4
    head = 24
    qkv = torch.randn(6, 3 * heads * head)
    weights = torch.randn(2, heads * head).unbind()
    phases = frame_phases(torch.tensor([4, 5, 9]), (1, 2), head)
    ring = [torch.empty(1, 6, heads, head) for _ in range(2)]
    queries = write_ring(qkv[None], *weights, phases, torch.arange(6), *ring, eps=1e-6)
    expected = (
        torch.stack((queries[0], *(each[0] for each in ring)), dim=1).unflatten(2, (parts, -1)).movedim(2, 0)
    )
    for turn in (launch_turn_heads, turn_heads):
        assert relative_error(turn(qkv, *weights, phases, parts, eps=1e-6), expected) <= 1e-6


@pytest.mark.parametrize("put", [launch_put_heads, put_heads])
def test_heads_that_have_travelled_go_to_their_places(put: Callable[..., None]) -> None:
    heads = torch.randn(6, 3, 2, 24)
    index = torch.tensor([7, 8, 0, 1, 4, 5])
    ring = torch.zeros(2, 9, 2, 24)
    put(heads, index, *ring)
    assert torch.equal(ring[:, index], heads[:, 1:].transpose(0, 1))
    assert not ring[:, [2, 3, 6]].any(), "what was not told to change has not"


@pytest.mark.parametrize("first", [0, 2, 5])
def test_rows_that_begin_within_a_frame_are_modulated_as_their_frames_are(first: int) -> None:
    """Four rows of a chunk of six, or of what it is filled up to: what is beyond its end is of the last
    frame."""
    x, y = torch.randn(2, 10, 48).unbind()
    gate, scale, shift = torch.randn(3, FRAMES, 48).unbind()
    frames = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2, 2, 2])[first : first + 4]
    for norm, gated in ((launch_add_norm, launch_add_gated), (add_norm, add_gated)):
        mine = x[:4].clone()
        other = x[:4].clone()
        rows = RowsOfFrames(TOKENS, first)
        found = norm(mine, y[:4].clone(), gate, scale, shift, eps=1e-6, fp8=False, rows=rows)
        wanted = x[:4] + y[:4] * gate[frames]
        expected = (
            torch.nn.functional.layer_norm(wanted, (48,), eps=1e-6) * (1 + scale[frames]) + shift[frames]
        )
        gated(other, y[:4].clone(), gate, rows)
        assert relative_error(found, expected) <= 1e-5
        assert relative_error(mine, wanted) <= 1e-6
        assert relative_error(other, wanted) <= 1e-6


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_parts_of_several_ranks_are_summed_on_the_way_and_the_rows_go_to_every_rank(
    ranks: int, fp8: bool
) -> None:
    x, gate, scale, shift = torch.randn(FRAMES * TOKENS, 48), *torch.randn(3, FRAMES, 48).unbind()
    parts = torch.randn(ranks, *x.shape).unbind()
    whole = torch.zeros(ranks, 3 * len(x), 48)
    rooms = whole.to(torch.float8_e4m3fn) if fp8 else whole
    wanted = x + torch.stack(parts).sum(0) * gate.repeat_interleave(TOKENS, 0)
    expected = torch.nn.functional.layer_norm(wanted, (48,), eps=1e-6) * (
        1 + scale.repeat_interleave(TOKENS, 0)
    )
    expected += shift.repeat_interleave(TOKENS, 0)
    for norm, gated in ((launch_add_norm, launch_add_gated), (add_norm, add_gated)):
        mine = x.clone()
        other = x.clone()
        scales = torch.zeros(ranks, 3 * len(x), 1)
        outs = [room[len(x) : 2 * len(x)] for room in rooms]
        outs8 = [Rows8(out, each[len(x) : 2 * len(x)]) for out, each in zip(outs, scales, strict=True)]
        found = norm(mine, parts, gate, scale, shift, eps=1e-6, fp8=fp8, outs=outs8 if fp8 else outs)
        gated(other, parts, gate)
        assert agree(found, quantise(expected) if fp8 else expected)
        assert relative_error(mine, wanted) <= 1e-6
        assert torch.equal(mine, other)
        assert all(torch.equal(each.float(), rooms[0].float()) for each in rooms)
        assert all(torch.equal(each, scales[0]) for each in scales)
        assert not rooms[:, : len(x)].float().any(), "rows of other ranks are left alone"
