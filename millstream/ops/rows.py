"""Operations between the matmuls of a transformer block, token by token, each a single pass over memory.

One signature each: Triton on a GPU, plain torch elsewhere. All arithmetic is float32; what is stored is
rounded once. A result that feeds an e4m3 matmul leaves as `Rows8`.
Shapes: B batch, L tokens, F frames of T tokens each, D width, N heads, H head width, U MLP width, P parts of
the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.attention import AttentionShare
from millstream.ops.backend import runs_kernels
from millstream.ops.fp8 import Rows8, quantise
from millstream.ops.frame_rows import Addend, RowsOfFrames
from millstream.ops.norms import rms_norm


def add_norm(
    x_LD: Tensor,
    y: Addend | None,
    gate_FD: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    *,
    eps: float,
    fp8: bool,
    later_D: Tensor | None = None,
    rows: RowsOfFrames | None = None,
    outs: Sequence[Tensor | Rows8] = (),
) -> Tensor | Rows8:
    """Add `y * gate` to `x` in place, then its layer norm: modulated by frame, or affine if `scale` is one
    vector [D].

    `gate`, and `scale` and `shift` of the modulated kind, are [F, D] with any stride between frames, all the
    same one. `later` is added to `x` too, but the norm does not see it: the bias of a matmul that will add
    itself to `x`.

    The result goes to all of `outs`, if there are any: several ranks' memory. The answer is the first of
    them.
    """
    if runs_kernels(x_LD):
        from millstream.ops.kernels.rows import launch_add_norm

        return launch_add_norm(
            x_LD, y, gate_FD, scale, shift, later_D, eps=eps, fp8=fp8, rows=rows, outs=outs
        )
    seen = x_LD.float() if y is None else _with_gated(x_LD, y, gate_FD, rows)
    normed = F.layer_norm(seen.to(x_LD.dtype).float(), x_LD.shape[-1:], eps=eps)
    x_LD.copy_(seen if later_D is None else seen + later_D.float())
    if scale.dim() == 2:
        normed = normed * (1 + _of_rows(scale, len(x_LD), rows)) + _of_rows(shift, len(x_LD), rows)
    else:
        normed = normed * scale.float() + shift.float()
    found = quantise(normed) if fp8 else normed.to(x_LD.dtype)
    for out in outs:
        _copy_rows(out, found)
    return outs[0] if outs else found


def add_gated(x_LD: Tensor, y: Addend, gate_FD: Tensor | None, rows: RowsOfFrames | None = None) -> None:
    """`x += y * gate`, rounded once. `gate` is [F, D] with any stride between frames."""
    if runs_kernels(x_LD):
        from millstream.ops.kernels.rows import launch_add_gated

        return launch_add_gated(x_LD, y, gate_FD, rows)
    x_LD.copy_(_with_gated(x_LD, y, gate_FD, rows))
    return None


def _with_gated(x_LD: Tensor, y: Addend, gate_FD: Tensor | None, rows: RowsOfFrames | None) -> Tensor:
    first, *others = (y,) if isinstance(y, Tensor) else y
    update = first.float()
    for part in others:
        update = update + part.float()
    return x_LD.float() + (update if gate_FD is None else update * _of_rows(gate_FD, len(x_LD), rows))


def _copy_rows(out: Tensor | Rows8, found: Tensor | Rows8) -> None:
    if isinstance(out, Rows8):
        assert isinstance(found, Rows8), "rows in e4m3 have scales"
        out.values_LI.copy_(found.values_LI)
        out.scales_L1.copy_(found.scales_L1)
    else:
        assert isinstance(found, Tensor), "rows in e4m3 go where there is room for scales"
        out.copy_(found)


def _of_rows(of_frames_FD: Tensor, count: int, rows: RowsOfFrames | None) -> Tensor:
    """Return each row's entry of a table by frame, for so many rows, in float32."""
    frames = len(of_frames_FD)
    if rows is None:
        assert count % frames == 0, f"{count} rows are no {frames} frames"
        rows = RowsOfFrames(count // frames, 0)
    return of_frames_FD.float()[rows.frames(count, frames).to(of_frames_FD.device)]


def norm_query(q_LD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Root-mean-square norm over all heads together."""
    if runs_kernels(q_LD):
        from millstream.ops.kernels.rows import launch_norm_query

        return launch_norm_query(q_LD, weight_D, eps=eps)
    return rms_norm(q_LD.float(), weight_D.float(), eps).to(q_LD.dtype)


def finish_attention(shares: Sequence[AttentionShare], num_zeros: int, *, fp8: bool) -> Tensor | Rows8:
    """Attention's answers one behind the other, ready for the next matmul: each put together from the parts
    of the keys that it has, and without the part of `num_zeros` keys that were zeros.

    The parts' shares of the whole are as their sums of exponentials. A zero key has score 0 and adds exp(0)
    to the sum, and its zero value adds nothing: what is left to do is to divide by the sum without it.
    """
    assert num_zeros >= 0, f"{num_zeros} zeros among the keys"
    first = shares[0].out_PBLD
    if len(shares) == len(first) == 1 and not fp8 and not num_zeros:
        return first[0].flatten(0, 1)
    if runs_kernels(first):
        from millstream.ops.kernels.rows import launch_finish_attention

        return launch_finish_attention(shares, num_zeros, fp8=fp8)
    out = torch.cat([_put_together(share, num_zeros) for share in shares])
    return quantise(out) if fp8 else out.to(first.dtype)


def join_heads(parts_PLX: Tensor, *, fp8: bool) -> Tensor | Rows8:
    """Attention's answers of all heads, ready for the next matmul, where each of the parts has some of the
    heads."""
    if runs_kernels(parts_PLX):
        from millstream.ops.kernels.rows import launch_join_heads

        return launch_join_heads(parts_PLX, fp8=fp8)
    out = parts_PLX.transpose(0, 1).flatten(1)
    return quantise(out) if fp8 else out


def _put_together(share: AttentionShare, num_zeros: int) -> Tensor:
    out_PBLD = share.out_PBLD.float()
    lse_PBNL = share.lse_PBNL
    if lse_PBNL is None:
        assert len(out_PBLD) == 1, "parts cannot be put together without their sums"
        assert not num_zeros, "zeros among the keys cannot be corrected without the log-sum-exp"
        return out_PBLD[0].flatten(0, 1)
    most_BNL = lse_PBNL.amax(0)
    share_PBLN = (lse_PBNL - most_BNL).exp().transpose(2, 3)
    sum_BLN = share_PBLN.sum(0) - num_zeros * (-most_BNL).exp().transpose(1, 2)
    parts_PBLNH = out_PBLD.unflatten(-1, (lse_PBNL.shape[2], -1)) * share_PBLN[..., None]
    return (parts_PBLNH.sum(0) / sum_BLN[..., None]).flatten(2).flatten(0, 1)


def gelu_rows(hidden_LU: Tensor) -> Rows8:
    """GELU (tanh), then e4m3."""
    if runs_kernels(hidden_LU):
        from millstream.ops.kernels.rows import launch_gelu_rows

        return launch_gelu_rows(hidden_LU)
    return quantise(F.gelu(hidden_LU.float(), approximate="tanh"))
