"""Bytes that training holds: weights, gradients, optimizer, averages, sharded as ZeRO and FSDP do; and
activations.

Mixed-precision Adam: 2 for the weight, 2 for the gradient (4 in fp32), 12 for the optimizer (fp32 copy, two
moments), 4 for an average. ZeRO-1 shards the optimizer, ZeRO-2 gradients too, ZeRO-3 (fully sharded) weights
too. Hybrid sharding shards within a group and repeats between groups: `shards` is that group's size. Offload
moves the optimizer to the host.

And how long a step takes, and its peak, with compiled blocks and matmuls in bf16, as `train RECIPE` runs
them on a GPU. A step goes forward, makes some of it again, and goes back. Matmuls go back with twice their
work, or once where the weights are frozen; attention with two and a half times its own; the rest is walks
over activations, which wait for memory. Shares and walks were fitted to the 1.3B with 32,760 tokens on an
H200; `python -m benchmarks.train_step` holds them against what is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from millstream.core.chunk_work import attention_flops, block_products
from millstream.core.config import DiTConfig, Recompute
from millstream.core.errors import ConfigError
from millstream.planner.hardware import Device
from millstream.planner.memory import dit_parameters
from millstream.planner.time import product_ms

ADAM_BYTES = 12
PACKED_BYTES = 2 + 8 / 256
"""Bytes of two moments in eight bits, and of a float32 scale for each block of each."""
EMA_BYTES = 4
ATTENTION_SHARE = 0.84
"""Share of a streaming kernel's rate that attention reaches, forward and backward: a step runs at the power
limit from its beginning to its end."""
BESIDE_SHARE = 0.89
"""Share of that rate where the pieces of a sequence run side by side and fill the processors
(`ops/piecewise.py`)."""
BACK_OVER_FORWARD = 2.5
"""Work of attention's backward pass over that of its forward pass: scores are computed again, then four
matmuls where there were two."""
VALUE_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    zero: int = 3
    shards: int = 1
    """Ranks that share one copy."""
    offload: bool = False
    prefetch: int = 2
    """Blocks whose whole weights are there at once under ZeRO-3: the one at work and the next."""
    weight_bytes: int = 2
    gradient_bytes: int = 2
    optimizer_bytes: float = ADAM_BYTES

    def __post_init__(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise ConfigError(f"--zero must be 0, 1, 2 or 3, got {self.zero}")
        if self.shards < 1:
            raise ConfigError(f"a model is sharded over 1 or more devices, got {self.shards}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Training state of one device, bytes."""

    weights: float
    gradients: float
    optimizer: float
    average: float
    host: float
    """Bytes in host memory, for this device: what offload moved there."""
    masters: float = 0.0
    """Float32 weights beside those that are computed with."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.average + self.masters


PRECISIONS: dict[str, tuple[int, int, float]] = {
    "mixed": (2, 2, ADAM_BYTES),
    "mixed-fp32-gradients": (2, 4, ADAM_BYTES),
    "fp32": (4, 4, 8),
    "bf16": (2, 2, 4),
    "8-bit": (2, 2, 4 + PACKED_BYTES),
}
"""Bytes of a parameter, its gradient and its optimizer: with a float32 copy beside bf16, all in float32, all
in bf16, and with the copy and moments in eight bits."""


def training_state(
    parameters: int, sharding: Sharding, *, trained: int | None = None, ema: bool = False
) -> TrainingState:
    """`trained` of the parameters learn: all by default, none for a frozen role, the adapters' for LoRA."""
    learns = parameters if trained is None else trained
    assert learns >= 0, f"{learns} parameters learn"
    n = sharding.shards
    whole = 1 if sharding.zero >= 3 else n
    optimizer = sharding.optimizer_bytes * learns / (n if sharding.zero >= 1 else 1)
    average = EMA_BYTES * learns / (n if sharding.zero >= 1 else 1) if ema else 0.0
    return TrainingState(
        weights=sharding.weight_bytes * parameters * whole / n,
        gradients=sharding.gradient_bytes * learns / (n if sharding.zero >= 2 else 1),
        optimizer=0.0 if sharding.offload else optimizer,
        average=0.0 if sharding.offload else average,
        host=optimizer + average if sharding.offload else 0.0,
    )


def optimiser_bytes(dit: DiTConfig, name: str, state_bits: int, lora_rank: int = 0) -> float:
    """That an optimiser keeps of each number that learns, of all of a DiT's or of a LoRA's."""
    if name == "adamw":
        return 8 if state_bits == 32 else PACKED_BYTES
    width = dit.width
    ffn = dit.ffn
    learns = lora_parameters(dit, lora_rank) if lora_rank else dit_parameters(dit)
    matrices = learns if lora_rank else dit.layers * (8 * width**2 + 2 * width * ffn)
    if name == "muon":
        return (4 * matrices + 8 * (learns - matrices)) / learns
    edges = dit.layers * (8 * 2 * width + 2 * (width + ffn))  # a number a row and one a column
    if lora_rank:
        return 4 * (edges + 20 * lora_rank * dit.layers) / learns  # twice as many factors, thin ones
    cells = dit.patch**2 * dit.channels
    around = [
        (width, dit.text_width),
        (width, width),
        (width, dit.time_features),
        (width, width),
        (6 * width, width),
    ]
    around += [(cells, width), (2, width), *dit.layers * [(6, width)]]
    rest = learns - matrices - sum(rows * columns for rows, columns in around)
    return 4 * (edges + sum(rows + columns for rows, columns in around) + rest) / learns


def learner_state(
    learning: int,
    frozen: int,
    *,
    data: str,
    ranks: int,
    frozen_bytes: int = 4,
    ema: bool = False,
    kept_bytes: float = 8.0,
    is_kept_whole: bool = False,
    learning_bytes: int = 4,
    masters: bool = False,
    offload: bool = False,
) -> TrainingState:
    """As `millstream train RECIPE` holds it on each of so many ranks that share a copy: what learns in
    float32 with what its optimiser keeps of each number (on every rank, if `is_kept_whole`), gradients in the
    same, and frozen weights beside, which our own ZeRO leaves whole. With `masters` float32 weights are kept
    as the optimiser's moments are, and weights and gradients are of `learning_bytes`. With `offload` both are
    in host memory; torch's own sharding has nothing on the device then between a block's turns."""
    everything, gradients, optimizer = (
        ranks if data in kinds else 1
        for kinds in (
            ("zero3", "fsdp", "hsdp"),
            ("zero2", "zero3", "fsdp", "hsdp"),
            ("zero1", "zero2", "zero3", "fsdp", "hsdp"),
        )
    )
    by_torch = data in ("fsdp", "hsdp")
    frozen_weights = frozen_bytes * frozen / (ranks if by_torch else 1)
    weights = learning_bytes * learning / everything
    moved = 4 * learning / optimizer
    held = (
        (4 if data == "zero1" and ranks > 1 else learning_bytes) * learning / gradients
    )  # that sums in float32, all at once
    kept = kept_bytes * learning / (1 if is_kept_whole else optimizer)
    average = EMA_BYTES * learning / optimizer if ema else 0.0
    if not offload:
        return TrainingState(
            weights=weights + frozen_weights,
            gradients=held,
            optimizer=kept,
            average=average,
            host=0.0,
            masters=moved if masters else 0.0,
        )
    if by_torch:
        whole = weights + frozen_weights + held
        return TrainingState(
            weights=0.0, gradients=0.0, optimizer=0.0, average=0.0, host=whole + kept + average
        )
    host = moved + kept + average
    return TrainingState(
        weights=weights + frozen_weights, gradients=held, optimizer=0.0, average=0.0, host=host
    )


def unsharded_bytes(dit: DiTConfig, sharding: Sharding) -> int:
    """The working set of ZeRO-3: `prefetch` blocks, gathered."""
    if sharding.zero < 3 or sharding.shards == 1:
        return 0
    block = 8 * dit.width**2 + 2 * dit.width * dit.ffn
    return 2 * sharding.prefetch * block


def gathered_parameters(dit: DiTConfig, data: str, ranks: int) -> int:
    """Count the parameters that a rank has whole at once although it shares them: those of the block at work
    and the next and what is outside of them; with our own ZeRO also where blocks read the prompt, and with
    torch's a block's gradients until they are scattered. ZeRO 2 shares gradients alone, and has those of a
    block whole until they are scattered."""
    if data not in ("zero2", "zero3", "fsdp", "hsdp") or ranks == 1:
        return 0
    outside = dit_parameters(replace(dit, layers=0))
    prompt = dit.width * (2 * dit.width + 3)
    block = (dit_parameters(dit) - outside) // dit.layers
    if data == "zero2":
        return block
    return outside + (2 * (block - prompt) + dit.layers * prompt if data == "zero3" else 3 * block)


def lora_parameters(dit: DiTConfig, rank: int) -> int:
    """Adapters on every matmul of every block."""
    square = 8 * 2 * dit.width * rank
    up = 2 * (dit.width + dit.ffn) * rank
    return dit.layers * (square + up)


def fullest_rank(dit: DiTConfig, *, tp: int = 1, pp: int = 1, lora_rank: int = 0) -> int:
    """Parameters of the rank that has most, or adapters of that rank: of a pipeline it is the one that
    embeds. Tensor parallel repeats the prompt's attention, what is added after a sum, and of each adapter the
    factor that is not beside the split."""
    width = dit.width
    ffn = dit.ffn
    rank = lora_rank
    if rank:
        block = lora_parameters(dit, rank) // dit.layers
        outside = 0
        split = rank * (4 * width + 2 * ffn)
    else:
        block = dit_parameters(replace(dit, layers=dit.layers + 1)) - dit_parameters(dit)
        outside = dit_parameters(dit) - dit.layers * block
        split = 4 * width**2 + 2 * width * ffn + 5 * width + ffn
    return outside + math.ceil(dit.layers / pp) * (block - split + split // tp)


def activation_bytes(
    dit: DiTConfig, tokens: int, *, recompute: Recompute = "selective", tp: int = 1, sequence: bool = False
) -> float:
    """Count the bytes of one block that are saved for the backward pass in bf16, tensor by tensor. Attention
    is fused and saves no scores.

    `none` keeps all: ten tensors of full width (residuals, norms, modulated inputs), eighteen over heads
    (float32 q/k norms for half of them) and the MLP's hidden layer twice. `selective` keeps the block's input
    and the outputs of ten matmuls and attentions, and computes norms, phases and activations again.
    `products` keeps the input and the output of self-attention, `full` the input. TP shards heads and MLP;
    `sequence` shards the rest too.
    """
    how = {"none": (10, 18, 2), "selective": (4, 6, 1), "products": (1, 1, 0), "full": (1, 0, 0)}
    full, heads, hidden = how[recompute]
    values = full * dit.width / (tp if sequence else 1) + (heads * dit.width + hidden * dit.ffn) / tp
    return 2 * tokens * values


def saved_bytes(dit: DiTConfig, tokens: int, recompute: Recompute) -> float:
    """All blocks of a DiT for one backward pass; what is made again is there for one block at a time."""
    kept, whole = (activation_bytes(dit, tokens, recompute=how) for how in (recompute, "none"))
    return (dit.layers - 1) * kept + whole


class ActivationWalks(NamedTuple):
    """Over the activations of a block, in times its width and its hidden layer."""

    width: float
    hidden: float
    heads: float = 0.0
    """Times the width too: what tensor parallel shares out, as it does the hidden layer."""

    def bytes(self, dit: DiTConfig, tokens: int, tp: int = 1) -> float:
        return (
            VALUE_BYTES
            * tokens
            * (self.width * dit.width + (self.heads * dit.width + self.hidden * dit.ffn) / tp)
        )


FORWARD = ActivationWalks(71.5, 3.0)
BACKWARD = ActivationWalks(148.0, 7.0)
AGAIN = ActivationWalks(51.0, 3.0)
"""The last is what `selective` adds."""

REMADE = ActivationWalks(11, 0)
"""Values alive in the backward graph of a compiled block under `products` when its MLP goes back, besides the
hidden layer: the outputs of self-attention and of its output matmul, the prompt's normed input, queries
before their norm and after it, the outputs of attention and of its output matmul, the MLP's input and
output, and the gradients of that output and of the block's."""

PLAIN: dict[Recompute, ActivationWalks] = {
    "none": ActivationWalks(14, 2, 9),
    "selective": ActivationWalks(6, 1, 4),
    "products": ActivationWalks(1, 0, 1),
    "full": ActivationWalks(1, 0),
}
"""Kept of a block operation by operation, in what its weights are in; and beside it where it goes back."""
NARROW = PLAIN | {"none": ActivationWalks(10, 2, 18)}
"""Values kept in bfloat16: norms and phases of q and k are float32 there, besides what they are made of."""
PLAIN_AT_WORK: dict[Recompute, ActivationWalks] = {
    "none": ActivationWalks(6, 0),
    "selective": ActivationWalks(2, 1),
    "products": ActivationWalks(3, 1),
    "full": ActivationWalks(3, 1),
}
ADAPTED: dict[Recompute, ActivationWalks] = {
    "none": ActivationWalks(16, 2),
    "selective": ActivationWalks(17, 2),
    "products": ActivationWalks(2, 0),
    "full": ActivationWalks(1, 0),
}
"""Values kept with adapters. Frozen matmuls need no inputs, so `selective`, which keeps the output of every
matmul, keeps no less than `none`."""
ADAPTED_AT_WORK: dict[Recompute, ActivationWalks] = {
    "none": ActivationWalks(1, 2),
    "selective": ActivationWalks(7, 2),
    "products": ActivationWalks(3, 2),
    "full": ActivationWalks(3, 2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningWork:
    """Training work of one rank."""

    dit: DiTConfig
    tokens: int
    keys: float
    """Keys that a token sees, on average."""
    recompute: Recompute
    is_frozen: bool = False
    """Adapters learn beside frozen weights."""
    learning_bytes: int = 4
    """Bytes of a weight that learns, and of its gradient: 2 with masters."""
    is_compiled: bool = True
    """In bf16, as on a GPU; or operation by operation in what the weights are in, as on a CPU."""
    tp: int = 1
    """Ranks that share its heads and hidden layers; as the next, of what is not compiled."""
    passes: float = 1.0
    """Whose activations are there at once: several of a pipeline's rank."""
    gathered: int = 0
    """Numbers that are whole at once though ranks share them: see `gathered_parameters`."""
    summed: int = 0
    """Numbers whose gradients are there once more, in float32, while ranks sum them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningTime:
    """Milliseconds."""

    forward: float
    backward: float
    """With what is made again for it."""

    @property
    def total(self) -> float:
        return self.forward + self.backward


def learning_time(work: LearningWork, device: Device) -> LearningTime:
    assert min(work.tokens, work.keys) > 0, f"{work.tokens} tokens that see {work.keys}"
    dit = work.dit
    rates = device.rates
    products = sum(product_ms(product, device, fp8=False) for product in block_products(dit, work.tokens))
    seen = attention_flops(work.tokens, round(work.keys), dit.width) + attention_flops(
        work.tokens, dit.text_tokens, dit.width
    )
    attention = seen / (BESIDE_SHARE * rates.attention_tflops) / 1e9
    walks = {
        each: each.bytes(dit, work.tokens) / rates.bandwidth_tb_s / 1e9 for each in (FORWARD, BACKWARD, AGAIN)
    }
    forward = products + attention + walks[FORWARD]
    again = {"none": 0.0, "selective": walks[AGAIN], "products": forward - attention, "full": forward}[
        work.recompute
    ]
    back = (1 if work.is_frozen else 2) * products + BACK_OVER_FORWARD * attention + walks[BACKWARD]
    return LearningTime(forward=dit.layers * forward, backward=dit.layers * (again + back))


def learning_peak(work: LearningWork, state: TrainingState, *, accumulates: bool = False) -> float:
    """Bytes: what is always there, and the largest of four moments: when all blocks have gone forward, when
    the last gradients are made, when ranks sum them, and when they are followed, in float32. Gradients that
    add up over several passes are there at all of them. AdamW is fused, and makes nothing."""
    always = state.weights + state.optimizer + state.average + state.masters
    always += work.learning_bytes * work.gathered
    if work.is_compiled and work.recompute == "none" and not work.is_frozen and work.learning_bytes == 4:
        always += state.weights * VALUE_BYTES / 4  # weights as matmuls take them, kept for the way back
    kept, whole = (_kept_bytes(work, how) for how in (work.recompute, "none"))
    there = state.gradients if accumulates else 0.0
    turned = work.passes * work.dit.layers * kept + _turn_bytes(work, kept, whole) + there
    return always + max(
        turned, state.gradients + whole, state.gradients + 4 * work.summed, state.masters + there
    )


def _turn_bytes(work: LearningWork, kept: float, whole: float) -> float:
    """Beside what all blocks keep, where the last of them begins its way back."""
    if work.is_compiled:
        again = {"full": whole, "products": REMADE.bytes(work.dit, work.tokens)}.get(work.recompute, 0.0)
        return ActivationWalks(0, 3).bytes(work.dit, work.tokens) + again
    at_work = (ADAPTED_AT_WORK if work.is_frozen else PLAIN_AT_WORK)[work.recompute]
    return whole - kept + work.learning_bytes / VALUE_BYTES * at_work.bytes(work.dit, work.tokens, work.tp)


def _kept_bytes(work: LearningWork, recompute: Recompute) -> float:
    """Count the bytes that one block keeps for its backward pass. Residuals are float32 where the modulations
    that they are made with are."""
    if not work.is_compiled:
        plain = ADAPTED if work.is_frozen else NARROW if work.learning_bytes == VALUE_BYTES else PLAIN
        return work.learning_bytes / VALUE_BYTES * plain[recompute].bytes(work.dit, work.tokens, work.tp)
    residual = 2 if work.learning_bytes == 4 and not work.is_frozen else 1
    kept = {
        "none": ActivationWalks(15 + 3 * residual, 1),
        "selective": ActivationWalks(9 + residual, 1),
        "products": ActivationWalks(1 + residual, 0),
        "full": ActivationWalks(residual, 0),
    }
    prompt = (
        3 * VALUE_BYTES * work.dit.text_tokens * work.dit.width
    )  # keys before their norm and after it, and values
    scales = 4 * work.dit.heads * work.tokens  # of attention's softmax
    return kept[recompute].bytes(work.dit, work.tokens) + prompt + scales
