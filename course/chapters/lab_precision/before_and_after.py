"""A model learns in float32, in bfloat16, and in float16 with and without a scale: losses, gradients, bytes,
seconds.

The loss has a weight of 1e-5, as one of several terms may have: its gradients are what float16 has no numbers
for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course.chapters.data_parallel.small_model import make_model, make_rows
from course.checking import load_answer
from course.lab import answer_in, held_state, quickest_s
from course.reader import Reader
from millstream.core.chunk_work import Product
from millstream.core.errors import CourseError
from millstream.planner.hardware import find_device
from millstream.planner.time import product_ms
from millstream.planner.training import VALUE_BYTES, TrainingState, learner_state
from millstream.train.parallel.precision import Precision, in_precision

WEIGHT = 1e-5
CPU = torch.device("cpu")
WAYS: dict[str, tuple[Precision, bool]] = {
    "float32": ("fp32", False),
    "bfloat16": ("bf16", False),
    "float16": ("fp16", False),
    "float16, scaled": ("fp16", True),
}


class LearntIn(NamedTuple):
    losses: list[float]
    vanished: float
    """Share of the first gradients that are zero."""
    saved: int
    """Bytes of activations kept for the backward pass."""
    state: TrainingState
    seconds: float


def run(
    reader: Reader, steps: int = 30, layers: int = 3, width: int = 32, rows: int = 128, answer: str = ""
) -> None:
    """`answer`: your file, instead of our solution."""
    if min(steps, layers, width, rows) < 1:
        raise CourseError(
            f"--steps, --layers, --width and --rows must be 1 or more, got {steps}, {layers}, {width}, {rows}"
        )
    mine = load_answer(answer_in(__file__, answer))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "mkldnn_matmul failed"
        )  # a processor that has no bfloat16 takes another way
        found = {name: _learnt(mine, *way, steps, (layers, width, rows)) for name, way in WAYS.items()}
    guess = reader.predict("what share of the first gradients is zero in float16 without a scale, in %?")
    reader.reveal(guess, 100 * found["float16"].vanished, by="counted", tolerance=0.1, is_measured=True)
    for name, each in found.items():
        reader.measured(
            f"{name:16} loss {each.losses[0]:.4f} to {each.losses[-1]:.4f}, {each.vanished:4.0%} of "
            "gradients are zero"
        )
    first = found["float32"].losses[0]
    last = found["float32"].losses[-1]
    assert last < 0.9 * first, f"float32 learns: {first} to {last}"
    assert found["float16"].vanished > 0.5, "float16 loses them without a scale"
    for name in ("bfloat16", "float16, scaled"):
        assert abs(found[name].losses[-1] - last) < 0.1 * last, (
            f"{name} ends at {found[name].losses[-1]}, float32 at {last}"
        )
        assert found[name].vanished < 0.01, f"{found[name].vanished} of the gradients of {name} are zero"
    _say_memory(reader, found, (layers, width, rows))
    for name, each in found.items():
        reader.measured(f"{name:16} a step of {1e3 * each.seconds:6.2f} ms")
    h200 = find_device("h200")
    one = Product(rows=rows, inner=width, outer=width, count=3 * layers)
    reader.say(
        f"the planner, of these products in bf16 on an {h200.name}: {product_ms(one, h200, fp8=False):.2g} "
        "ms, by its bandwidth"
    )


def _say_memory(reader: Reader, found: dict[str, LearntIn], shape: tuple[int, int, int]) -> None:
    count = sum(each.numel() for each in make_model(*shape[:2]).parameters())
    planned = learner_state(count, 0, data="replicas", ranks=1)
    for name, each in found.items():
        assert each.state == planned, f"{name}: counted {each.state}, planned {planned}"
    reader.say(
        f"weights, gradients, Adam: {planned.total / 1e3:.1f} kB in all four, as the planner says: they stay "
        "in float32"
    )
    for name, value_bytes in (("float32", 4), ("bfloat16", VALUE_BYTES)):
        expected = _kept_bytes(shape, value_bytes)
        reader.say(
            f"{name:16} keeps {found[name].saved / 1e3:6.1f} kB for the backward pass, {expected / 1e3:.1f} "
            "by hand"
        )
        assert found[name].saved == expected, f"{name} keeps {found[name].saved} bytes, expected {expected}"


def _kept_bytes(shape: tuple[int, int, int], value_bytes: int) -> int:
    """The input and each layer's output; the error, in float32; and copies of weights in 16 bits, but for the
    first layer's."""
    layers, width, rows = shape
    copies = 0 if value_bytes == 4 else (layers - 1) * width**2
    return value_bytes * ((layers + 1) * rows * width + copies) + 4 * rows * width


def _learnt(
    mine: ModuleType, precision: Precision, is_scaled: bool, steps: int, shape: tuple[int, int, int]
) -> LearntIn:
    layers, width, count = shape
    model = make_model(layers, width)
    rows = make_rows(count, width)
    target = make_model(1, width)(rows).detach().roll(1, dims=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-15)
    scaler = mine.LossScaler() if is_scaled else None
    losses = list[float]()
    vanished = list[float]()

    def step() -> None:
        optimiser.zero_grad()
        with in_precision(precision, CPU):
            made = model(rows)
        loss = (made.float() - target).square().mean()
        weighted = loss * WEIGHT
        (weighted if scaler is None else scaler.scaled(weighted)).backward()
        vanished.append(_zeros(model))
        losses.append(loss.item())
        if scaler is None:
            optimiser.step()
        else:
            scaler.step(optimiser)

    saved = _saved_bytes(model, step)
    for _ in range(steps - 1):
        step()
    state = held_state(model.parameters(), optimiser)
    made = list(losses)
    return LearntIn(made, vanished[0], saved, state, quickest_s(step))


def _zeros(model: nn.Module) -> float:
    gradients = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    return float((gradients == 0).float().mean())


def _saved_bytes(model: nn.Module, step: Callable[[], None]) -> int:
    """Return the bytes that autograd keeps besides the parameters, each storage once."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept = dict[int, Any]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(storage.nbytes() for storage in kept.values())
