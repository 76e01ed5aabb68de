"""Effect of 16 bits on sums, norms and updates, and what autocast does about it."""

from __future__ import annotations

import torch

from course.reader import Reader

END = int(2 / torch.finfo(torch.bfloat16).eps)
"""Up to which bfloat16 counts by ones."""


def run(reader: Reader, count: int = 4096) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        limits = torch.finfo(dtype)
        smallest = limits.smallest_normal * limits.eps
        reader.say(
            f"{_name(dtype):9} largest {limits.max:.3g}, smallest {smallest:.2g}, next after 1: 1 + "
            f"{limits.eps:.2g}"
        )
    guess = reader.predict(f"{count} ones are added one after the other in bfloat16. What comes out?")
    sums = {dtype: _added(count, dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)}
    reader.reveal(
        guess,
        sums[torch.bfloat16],
        by=f"{END} + 1 is {END} again: it has {END.bit_length() - 1} binary digits",
    )
    assert sums[torch.float32] == count, f"{sums}"
    assert sums[torch.bfloat16] == min(count, END), f"{sums}"
    reader.say(
        f"the same in float16 {sums[torch.float16]:g}, in float32 {sums[torch.float32]:g}: sums want float32"
    )
    size = 300
    wide = torch.full((count,), float(size), dtype=torch.float16)
    norm = float(wide.square().mean().sqrt())
    reader.say(
        f"root mean square of {count} times {size} in float16: {norm:g}; by squares in float32 {_rms(wide):g}"
    )
    assert norm == float("inf"), f"{norm}"
    x = torch.randn(4, 8)
    weight = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kinds = {
            "product": x @ weight,
            "softmax": (x @ weight).softmax(-1),
            "loss": torch.nn.functional.mse_loss(x @ weight, x),
        }
    said = ", ".join(f"{name} in {_name(each.dtype)}" for name, each in kinds.items())
    reader.say(f"autocast leaves a {said}")
    assert kinds["product"].dtype == torch.bfloat16, "products are what 16 bits are for"
    assert kinds["loss"].dtype == torch.float32, "a loss is a long sum"


def _added(count: int, dtype: torch.dtype) -> float:
    one = total = torch.ones((), dtype=dtype)
    for _ in range(count - 1):
        total = total + one
    return float(total)


def _rms(x: torch.Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
