"""Attention of a sequence that is cut into pieces, each of which sees keys of its own, and the way back.

It is what training does in the place of a mask: no work is spent on what a piece may not see. Where cuDNN
attends, pieces run beside each other on two streams, since each alone ends with few tiles for many
processors. Which tokens see which is the caller's affair (`train/sequence.py`).

Kernels like a number of keys that is a multiple of 128. So zeros may follow each unit of the keys: a query's
output is then divided by the share of its sum of exponentials that is not theirs, and goes back with the sum
without them: keys of zeros give queries no gradient, and their own is cut off. That takes one sum from
another in float32, so the zeros' must not be most of it: it would be where a query is far from all keys. What
the keys have in common is taken from them first, which changes all scores of a query alike and so nothing of
attention; the mean exponential of all keys is then 1 or more, and that of zeros is 1.
Shapes: B batch, L tokens, W keys with zeros between them, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.attention import KEY_MULTIPLE, AttentionShare, attend, attend_back, attend_with_sum
from millstream.ops.rows import finish_attention

MOST_ZEROS = 0.02
"""Largest share of the keys that may be zeros: more costs more than round numbers gain."""


class TokenPiece(NamedTuple):
    """Tokens that see the same, and the runs of tokens that they see, in order."""

    queries: slice
    sees: tuple[slice, ...]


class KeySpan(NamedTuple):
    """A piece among keys with zeros between them."""

    queries: slice
    sees: tuple[slice, ...]
    zeros: int
    """Zeros among the keys that the piece sees."""

    @property
    def num_queries(self) -> int:
        return _length(self.queries)

    @property
    def num_keys(self) -> int:
        return sum(map(_length, self.sees))


class PiecesBeside(NamedTuple):
    """Pieces that are to be attended to beside each other, as an operation of a graph takes them."""

    unit: int
    """Tokens of a unit: all pieces and what they see begin and end at multiples of it."""
    filled: int
    """Tokens of a unit with the zeros behind it."""
    numbers: list[int]

    @staticmethod
    def of(pieces: Sequence[TokenPiece], unit: int) -> PiecesBeside:
        filled = filled_unit(unit)
        return PiecesBeside(
            unit, filled, _as_numbers([_among_zeros(piece, unit, filled) for piece in pieces])
        )


def attend_pieces(q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, pieces: Sequence[TokenPiece]) -> Tensor:
    """Attend to one piece after the other."""
    parts = [
        attend(q_BLNH[:, piece.queries], _seen(k_BLNH, piece.sees), _seen(v_BLNH, piece.sees))
        for piece in pieces
    ]
    return torch.cat(parts, dim=1)


def attend_beside(q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, pieces: PiecesBeside) -> Tensor:
    """Attend to pieces beside each other, in half precision by cuDNN."""
    if pieces.filled > pieces.unit:
        k_BLNH = _apart(k_BLNH)
    k_BWNH, v_BWNH = (_with_zeros(x, pieces) for x in (k_BLNH, v_BLNH))
    made = _attend_spans(q_BLNH, k_BWNH, v_BWNH, pieces.numbers)
    return torch.cat(made[: len(made) // 2], dim=1)


def filled_unit(unit: int) -> int:
    """Return the length of a unit with the zeros that follow it, if they are few."""
    filled = -unit % KEY_MULTIPLE + unit
    return filled if filled <= (1 + MOST_ZEROS) * unit else unit


@torch.library.custom_op("millstream::attend_spans", mutates_args=())
def _attend_spans(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, numbers: list[int]) -> list[Tensor]:
    """Return the output of each span's queries, [B, L, N, H], then the logarithm of each span's sums of
    exponentials with zeros, [B, N, L]."""

    def attend_span(_: int, span: KeySpan) -> tuple[Tensor, Tensor]:
        out, sums = attend_with_sum(
            q_BLNH[:, span.queries], _seen(k_BWNH, span.sees), _seen(v_BWNH, span.sees)
        )
        made = finish_attention([AttentionShare(out.flatten(2)[None], sums[None])], span.zeros, fp8=False)
        assert isinstance(made, Tensor), "fp8 was not asked for"
        return made.view_as(out), sums

    return _by_kind(_beside(_as_spans(numbers), attend_span, q_BLNH.device))


@torch.library.custom_op("millstream::attend_spans_back", mutates_args=())
def _attend_spans_back(
    douts: list[Tensor],
    q_BLNH: Tensor,
    k_BWNH: Tensor,
    v_BWNH: Tensor,
    outs: list[Tensor],
    sums: list[Tensor],
    numbers: list[int],
) -> list[Tensor]:
    """Gradients of each span's queries, then of the keys it sees, then of their values. The sums are without
    zeros."""
    spans = _as_spans(numbers)

    def go_back(place: int, span: KeySpan) -> tuple[Tensor, Tensor, Tensor]:
        given = q_BLNH[:, span.queries], _seen(k_BWNH, span.sees), _seen(v_BWNH, span.sees)
        dq, dk, dv = (
            made.contiguous() for made in attend_back(douts[place], *given, outs[place], sums[place])
        )
        return dq, dk, dv

    return _by_kind(_beside(spans, go_back, q_BLNH.device))


@_attend_spans.register_fake
def _(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, numbers: list[int]) -> list[Tensor]:
    (rows, _, heads, width) = q_BLNH.shape
    lengths = [span.num_queries for span in _as_spans(numbers)]
    outs = [q_BLNH.new_empty(rows, length, heads, width) for length in lengths]
    return outs + [q_BLNH.new_empty(rows, heads, length, dtype=torch.float32) for length in lengths]


@_attend_spans_back.register_fake
def _(
    douts: list[Tensor],
    q_BLNH: Tensor,
    k_BWNH: Tensor,
    v_BWNH: Tensor,
    outs: list[Tensor],
    sums: list[Tensor],
    numbers: list[int],
) -> list[Tensor]:
    (rows, _, heads, width) = q_BLNH.shape
    spans = _as_spans(numbers)
    lengths = [span.num_queries for span in spans] + 2 * [span.num_keys for span in spans]
    return [q_BLNH.new_empty(rows, length, heads, width) for length in lengths]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *given, ctx.numbers = inputs
    ctx.save_for_backward(*given, *output)


def _back(ctx: Any, grads: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, None]:
    q_BLNH, k_BWNH, v_BWNH, *made = ctx.saved_tensors
    spans = _as_spans(ctx.numbers)
    num = len(made) // 2
    sums = [
        lse + torch.log(1 - span.zeros * torch.exp(-lse)) for span, lse in zip(spans, made[num:], strict=True)
    ]
    back = _attend_spans_back(grads[:num], q_BLNH, k_BWNH, v_BWNH, made[:num], sums, ctx.numbers)
    dk, dv = (_sum_of(back[kind * num : (kind + 1) * num], spans, k_BWNH) for kind in (1, 2))
    return torch.cat(back[:num], dim=1), dk, dv, None


_attend_spans.register_autograd(_back, setup_context=_keep)
ATTEND_SPANS = torch.ops.millstream.attend_spans.default
"""The operation, as policies of recomputing name it."""


def _sum_of(parts: Sequence[Tensor], spans: Sequence[KeySpan], like_BWNH: Tensor) -> Tensor:
    """Sum the parts, each at its span's keys; a compiler makes one pass of it."""
    total = torch.zeros_like(like_BWNH)
    length = like_BWNH.shape[1]
    for part, span in zip(parts, spans, strict=True):
        for run, piece in zip(span.sees, part.split([_length(run) for run in span.sees], dim=1), strict=True):
            total = total + F.pad(piece, (0, 0, 0, 0, run.start, length - run.stop))
    return total


def _beside(
    spans: Sequence[KeySpan], do: Callable[[int, KeySpan], tuple[Tensor, ...]], device: torch.device
) -> list[tuple[Tensor, ...]]:
    """Call `do` for each span and return the results. On a GPU there are two streams, and the less loaded one
    takes the largest span that is left; ours goes on when all are done."""
    if device.type != "cuda":
        return [do(place, span) for place, span in enumerate(spans)]
    main = torch.cuda.current_stream(device)
    streams = (main, _side_stream(device))
    load = [0, 0]
    done = dict[int, tuple[Tensor, ...]]()
    streams[1].wait_stream(main)
    for place in sorted(
        range(len(spans)), key=lambda place: -spans[place].num_queries * spans[place].num_keys
    ):
        turn = load.index(min(load))
        load[turn] += spans[place].num_queries * spans[place].num_keys
        with torch.cuda.stream(streams[turn]):
            done[place] = do(place, spans[place])
            for tensor in done[place]:
                tensor.record_stream(
                    main
                )  # made by the side stream, it would be given to that stream alone again
    main.wait_stream(streams[1])
    return [done[place] for place in range(len(spans))]


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _among_zeros(piece: TokenPiece, unit: int, filled: int) -> KeySpan:
    """Return where a piece lies once each unit of the keys is filled up."""

    def moved(run: slice) -> slice:
        assert run.start % unit == run.stop % unit == 0, (
            f"tokens {run.start} to {run.stop} are not in units of {unit}"
        )
        return slice(run.start // unit * filled, run.stop // unit * filled)

    zeros = sum(map(_length, piece.sees)) // unit * (filled - unit)
    return KeySpan(piece.queries, tuple(map(moved, piece.sees)), zeros)


def _apart(k_BLNH: Tensor) -> Tensor:
    """Keys without what all have in common, of which they have no gradient: all scores of a query change
    alike."""
    common_B1NH = k_BLNH.detach().mean(dim=1, keepdim=True, dtype=torch.float32)
    return (k_BLNH.float() - common_B1NH).to(k_BLNH.dtype)


def _with_zeros(x_BLNH: Tensor, pieces: PiecesBeside) -> Tensor:
    unit, filled, _ = pieces
    if filled == unit:
        return x_BLNH
    return F.pad(x_BLNH.unflatten(1, (-1, unit)), (0, 0, 0, 0, 0, filled - unit)).flatten(1, 2)


def _as_numbers(spans: Sequence[KeySpan]) -> list[int]:
    """Encode spans as numbers, which an operation takes: queries, zeros, how many runs, and these."""
    numbers = list[int]()
    for queries, sees, zeros in spans:
        numbers += (
            queries.start,
            queries.stop,
            zeros,
            len(sees),
            *(bound for run in sees for bound in (run.start, run.stop)),
        )
    return numbers


def _as_spans(numbers: Sequence[int]) -> list[KeySpan]:
    spans = list[KeySpan]()
    given = iter(numbers)
    for start in given:
        queries = slice(start, next(given))
        zeros = next(given)
        runs = next(given)
        spans.append(KeySpan(queries, tuple(slice(next(given), next(given)) for _ in range(runs)), zeros))
    return spans


def _by_kind(made: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    return [each for kind in zip(*made, strict=True) for each in kind]


def _seen(x_BLNH: Tensor, runs: tuple[slice, ...]) -> Tensor:
    return x_BLNH[:, runs[0]] if len(runs) == 1 else torch.cat([x_BLNH[:, run] for run in runs], dim=1)


def _length(run: slice) -> int:
    length: int = run.stop - run.start
    return length
