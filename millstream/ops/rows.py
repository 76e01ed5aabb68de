"""What lies between the products of a transformer block, token by token, each a single pass over memory.

One signature each: Triton on a GPU, plain torch elsewhere. All arithmetic is float32; what is stored is rounded once. A
result that feeds an e4m3 product leaves as `Rows8`.
Shapes: L tokens, F frames of T tokens each, D width, N heads, H head width, U MLP width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from millstream.ops.backend import runs_kernels
from millstream.ops.fp8 import Rows8, quantise
from millstream.ops.norms import rms_norm


def add_norm(
    x_LD: Tensor, y_LD: Tensor | None, gate_FD: Tensor | None, scale: Tensor, shift: Tensor, *, eps: float, fp8: bool
) -> Tensor | Rows8:
    """Add `y * gate` to `x` in place, then its layer norm: modulated by frame, or affine if `scale` is one vector [D].

    `gate`, and `scale` and `shift` of the modulated kind, are [F, D] with any stride between frames, all the same one.
    """
    if runs_kernels(x_LD):
        from millstream.ops.kernels.rows import launch_add_norm

        return launch_add_norm(x_LD, y_LD, gate_FD, scale, shift, eps=eps, fp8=fp8)
    if y_LD is not None:
        add_gated(x_LD, y_LD, gate_FD)
    normed = F.layer_norm(x_LD.float(), x_LD.shape[-1:], eps=eps)
    if scale.dim() == 2:
        frames = len(scale)
        normed = (normed.unflatten(0, (frames, -1)) * (1 + scale.float()[:, None]) + shift.float()[:, None]).flatten(0, 1)
    else:
        normed = normed * scale.float() + shift.float()
    return quantise(normed) if fp8 else normed.to(x_LD.dtype)


def add_gated(x_LD: Tensor, y_LD: Tensor, gate_FD: Tensor | None) -> None:
    """`x += y * gate`, rounded once. `gate` is [F, D] with any stride between frames."""
    if runs_kernels(x_LD):
        from millstream.ops.kernels.rows import launch_add_gated

        return launch_add_gated(x_LD, y_LD, gate_FD)
    update = y_LD.float()
    if gate_FD is not None:
        update = (update.unflatten(0, (len(gate_FD), -1)) * gate_FD.float()[:, None]).flatten(0, 1)
    x_LD.copy_(x_LD.float() + update)
    return None


def norm_query(q_LD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Root-mean-square norm over all heads together."""
    if runs_kernels(q_LD):
        from millstream.ops.kernels.rows import launch_norm_query

        return launch_norm_query(q_LD, weight_D, eps=eps)
    return rms_norm(q_LD.float(), weight_D.float(), eps).to(q_LD.dtype)


def finish_attention(out_LD: Tensor, lse_NL: Tensor | None, num_zeros: int, *, fp8: bool) -> Tensor | Rows8:
    """Attention's answer without the part of `num_zeros` keys that were zeros, ready for the next product.

    A zero key has score 0 and adds exp(0) to the denominator, and its zero value adds nothing: what is left to do is
    to divide by 1 - num_zeros * exp(-lse).
    """
    if not fp8 and not num_zeros:
        return out_LD
    if runs_kernels(out_LD):
        from millstream.ops.kernels.rows import launch_finish_attention

        return launch_finish_attention(out_LD, lse_NL, num_zeros, fp8=fp8)
    out = out_LD.float()
    if num_zeros:
        assert lse_NL is not None, "zeros among the keys cannot be corrected without the log-sum-exp"
        share_LN = 1 - num_zeros * (-lse_NL).exp().t()
        out = (out.unflatten(-1, (lse_NL.shape[0], -1)) / share_LN[..., None]).flatten(-2)
    return quantise(out) if fp8 else out.to(out_LD.dtype)


def gelu_rows(hidden_LU: Tensor) -> Rows8:
    """GELU (tanh), then e4m3."""
    if runs_kernels(hidden_LU):
        from millstream.ops.kernels.rows import launch_gelu_rows

        return launch_gelu_rows(hidden_LU)
    return quantise(F.gelu(hidden_LU.float(), approximate="tanh"))
