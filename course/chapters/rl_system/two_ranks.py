"""Together, apart in turns, apart a step late: the same work on two ranks, measured."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course.chapters.four_models.roles import LONGEST, Sentences, log_probs, write
from course.reader import Reader
from course.tinylm.model import TinyLM
from course.tinylm.training import fresh
from millstream.core.errors import CourseError
from millstream.mesh.local_ranks import on_ranks

WAYS = ("together", "apart, in turns", "apart, a step late")


class RankTimes(NamedTuple):
    seconds: float
    busy_s: float
    lags: list[int]
    """How many versions old the weights were that wrote what each step learnt from."""


def run(reader: Reader, sentences: int = 16, steps: int = 3) -> None:
    if not (2 <= sentences <= 64 and sentences % 2 == 0 and 2 <= steps <= 20):
        raise CourseError(
            f"--sentences must be even, 2 to 64, and --steps 2 to 20, got {sentences} and {steps}"
        )
    guess = reader.predict(
        "apart, a step late: by how many versions are the weights old that wrote what a step learns from?"
    )
    found = {way: on_ranks(work, 2, way, sentences, steps) for way in WAYS}
    reader.reveal(guess, found[WAYS[2]][1].lags[-1], by="counted: the next is written meanwhile")
    for way, times in found.items():
        seconds = max(each.seconds for each in times)
        waits = 1 - sum(each.busy_s for each in times) / (2 * seconds)
        reader.measured(
            f"{way:20}{1e3 * seconds / steps:8.0f} ms a step, ranks wait {waits:4.0%} of the time"
        )
    assert set(found[WAYS[0]][0].lags) == set(found[WAYS[1]][1].lags) == {0}, f"{found}"
    turns, late = (
        sum(each.busy_s for each in found[way]) / max(each.seconds for each in found[way]) for way in WAYS[1:]
    )
    assert turns < 1.05, "in turns, one rank works at a time"
    assert late > turns, "a step late, both work at once"
    reader.say(
        "in turns one of two waits, always; a step late both work, and learn from samples of older weights"
    )


def work(rank: int, world: int, way: str, sentences: int, steps: int) -> RankTimes:
    lm = fresh()
    made = torch.Generator().manual_seed(rank)
    optimiser = torch.optim.Adam(lm.parameters(), lr=1e-4)
    clock = Clock()
    write(lm, 2, made)  # what is slow only once
    dist.barrier()
    begun = time.perf_counter()
    lags = list[int]()
    if way == "together":
        for _ in range(steps):
            with clock:
                tokens = write(lm, sentences // 2, made).token_BT
            learn(lm, optimiser, tokens, clock, share=True)
            lags.append(0)
    elif rank == 0:
        write_for(lm, sentences, steps, clock, made, is_late="late" in way)
    else:
        lags = learn_from(lm, optimiser, sentences, steps, clock)
    return RankTimes(time.perf_counter() - begun, clock.busy_s, lags)


class Clock:
    """Adds up the time inside of it."""

    busy_s = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *problem: object) -> None:
        self.busy_s += time.perf_counter() - self._begun


def write_for(
    lm: TinyLM, sentences: int, steps: int, clock: Clock, made: torch.Generator, *, is_late: bool
) -> None:
    """Rank 0: writes, hands over, takes weights; if late, those of the step before the one just handed
    over."""
    version = 0
    waiting = 0
    for step in range(steps):
        with clock:
            tokens = write(lm, sentences, made).token_BT
        dist.send(torch.cat([tokens.flatten(), torch.tensor([version])]), 1)
        waiting += 1
        while waiting > (1 if is_late and step < steps - 1 else 0):
            take_weights(lm)
            version = version + 1
            waiting = waiting - 1


def learn_from(
    lm: TinyLM, optimiser: torch.optim.Optimizer, sentences: int, steps: int, clock: Clock
) -> list[int]:
    """Rank 1: takes sentences, learns, hands weights over. How old the weights were that wrote them."""
    lags = list[int]()
    sent = list[dist.Work | None]()
    for version in range(steps):
        got = torch.empty(sentences * (LONGEST + 1) + 1, dtype=torch.long)
        dist.recv(got, 0)
        lags.append(version - int(got[-1]))
        learn(lm, optimiser, got[:-1].view(sentences, -1), clock, share=False)
        flat = torch.cat([each.detach().flatten() for each in lm.parameters()])
        sent.append(dist.isend(flat, 0))
    for each in sent:
        assert each is not None, "this rank is one of the group"
        each.wait()
    return lags


def learn(lm: TinyLM, optimiser: torch.optim.Optimizer, tokens: Tensor, clock: Clock, *, share: bool) -> None:
    """As dear as a step of PPO for the actor, with an advantage of 1."""
    with clock:
        made = Sentences(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))
        for _ in range(4):
            optimiser.zero_grad(set_to_none=True)
            (-log_probs(lm, made).mean()).backward()
    if share:
        flat = torch.cat([each.grad.flatten() for each in lm.parameters() if each.grad is not None])
        dist.all_reduce(flat)
    with clock:
        optimiser.step()


@torch.no_grad()
def take_weights(lm: TinyLM) -> None:
    weights = list(lm.parameters())
    flat = torch.empty(sum(each.numel() for each in weights))
    dist.recv(flat, 1)
    for weight, part in zip(weights, flat.split([each.numel() for each in weights]), strict=True):
        weight.copy_(part.view_as(weight))
