"""Trains the tiny language model, and keeps it in a file of the reader's own, so that later chapters find it.

The file's name holds what it was made from; with another recipe it is another file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from course.progress import progress_file
from course.tinylm.model import TinyConfig, TinyLM
from course.tinylm.text import CHOICES, END, encode, make_text
from millstream.core.errors import CourseError
from millstream.core.files import Staging

STEPS = 400
ROWS = 12
LENGTH = 128
RATE = 1.2e-2
LINES = 4000
HELD_BACK_LINES = 40
WARM_UP = 20


class TrainedStep(NamedTuple):
    step: int
    loss: float
    seconds: float


def train_steps(lm: TinyLM, steps: int = STEPS) -> Iterator[TrainedStep]:
    """Learn the next letter of pieces of the text, each from the beginning of a line on."""
    tokens = torch.tensor(encode(make_text(LINES, seed=0)))
    made = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(lm.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / WARM_UP) * (1.0 - 0.95 * step / steps)
    )
    lines = (tokens[:-LENGTH] == END).nonzero()
    begun = time.perf_counter()
    for step in range(steps):
        begins = lines[torch.randint(len(lines), (ROWS,), generator=made)]
        loss = loss_on(lm, tokens[begins + torch.arange(LENGTH + 1)])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        optimiser.step()
        rate.step()
        yield TrainedStep(step, float(loss.detach()), time.perf_counter() - begun)


def loss_on(lm: TinyLM, tokens_BL: Tensor) -> Tensor:
    """Nats a letter."""
    logits = lm(tokens_BL[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens_BL[:, 1:].flatten())


def held_back_loss(lm: TinyLM) -> float:
    """On lines drawn anew, each read from its own beginning."""
    text = make_text(HELD_BACK_LINES, seed=-1)
    rows = [torch.tensor(encode(f"\n{line}\n")) for line in text.strip("\n").split("\n")]
    with torch.no_grad():
        sums = [(float(loss_on(lm, row[None])) * (len(row) - 1), len(row) - 1) for row in rows]
    return sum(loss for loss, _ in sums) / sum(count for _, count in sums)


def fresh(seed: int = 0) -> TinyLM:
    torch.manual_seed(seed)
    return TinyLM(TinyConfig())


def kept_file() -> Path:
    recipe = repr((TinyConfig(), STEPS, ROWS, LENGTH, RATE, LINES, CHOICES))
    return progress_file().with_name(f"tiny_lm_{hashlib.sha256(recipe.encode()).hexdigest()[:8]}.safetensors")


def keep(lm: TinyLM) -> Path:
    path = kept_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with Staging(path.parent) as staging:
        save_file(lm.state_dict(), staging.path(path.name))
    return path


def trained() -> TinyLM:
    """The kept one, or one that is trained now."""
    lm = fresh()
    if not kept_file().is_file():
        print("training the tiny language model once; later scripts find it")
        for _ in train_steps(lm):
            pass
        keep(lm)
    try:
        lm.load_state_dict(load_file(kept_file()))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CourseError(
            f"cannot read {kept_file()} ({type(error).__name__}); delete it and it is made anew"
        ) from None
    return lm.eval().requires_grad_(requires_grad=False)
