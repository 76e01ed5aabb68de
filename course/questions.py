"""The quiz's questions. Every answer is computed by the planner, and so is what explains it: nothing is typed
in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.asked.language import language_questions
from course.asked.scaling import scaling_questions
from course.model_questions import model_questions
from course.question import Question
from course.reading.questions import reading_questions
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB
from millstream.core.presets import find_model
from millstream.planner.bubbles import Schedule, held_micro_batches
from millstream.planner.communication import all_gather, all_reduce, point_to_point
from millstream.planner.explain import explain_adam, explain_bubble
from millstream.planner.hardware import NETWORK, NVLINK4, PCIE5, Link
from millstream.planner.memory import window_bytes
from millstream.planner.training import ADAM_BYTES, Sharding, training_state

BILLION = 10**9


def all_questions() -> list[Question]:
    memory = [*_weights(), *_adam(), *_zero(), *_offload(), *_windows()]
    talk = [*_reduces(), *_gathers(), *_messages(), *_bubbles(), *_held()]
    return [
        *memory,
        *talk,
        *model_questions(),
        *language_questions(),
        *scaling_questions(),
        *reading_questions(),
    ]


def _weights() -> Iterator[Question]:
    for billions in (1.3, 7, 13, 30, 70, 405):
        size = training_state(int(billions * BILLION), Sharding(zero=0)).weights
        yield Question(
            topic="weights",
            text=f"A model of {billions:g} billion parameters in bf16. How many GB are its weights?",
            answer=size / 1e9,
            unit="GB",
            why="two bytes a parameter in bf16, so twice as many GB as there are billions",
        )


def _adam() -> Iterator[Question]:
    for billions in (1.3, 7, 30, 70):
        yield Question(
            topic="adam",
            text=f"{billions:g} billion parameters are trained with Adam in mixed precision on one device, "
            "nothing sharded. "
            "How many GB are weights, gradients and optimiser together?",
            answer=training_state(int(billions * BILLION), Sharding(zero=0)).total / 1e9,
            unit="GB",
            why=explain_adam(billions * BILLION, Sharding(zero=0)).said,
        )


def _zero() -> Iterator[Question]:
    cases = (
        (7, 1, 8),
        (7, 2, 8),
        (7, 3, 8),
        (13, 1, 16),
        (13, 3, 16),
        (30, 1, 64),
        (30, 2, 64),
        (30, 3, 64),
        (70, 3, 64),
    )
    for billions, stage, ranks in (*cases, (405, 3, 512)):
        sharding = Sharding(zero=stage, shards=ranks)
        yield Question(
            topic="zero",
            text=f"{billions} billion parameters, Adam in mixed precision, ZeRO-{stage} over {ranks} ranks. "
            "How many GB of state does one rank hold?",
            answer=training_state(billions * BILLION, sharding).total / 1e9,
            unit="GB",
            why=explain_adam(billions * BILLION, sharding).said,
        )


def _offload() -> Iterator[Question]:
    for billions, stage, ranks in ((7, 2, 4), (30, 3, 8)):
        found = training_state(billions * BILLION, Sharding(zero=stage, shards=ranks, offload=True))
        yield Question(
            topic="offload",
            text=f"{billions} billion parameters, ZeRO-{stage} over {ranks} ranks, the optimiser offloaded "
            "to host memory. "
            "How many GB of host memory does one rank take?",
            answer=found.host / 1e9,
            unit="GB",
            why=f"the optimiser's {ADAM_BYTES} bytes a parameter, shared by {ranks} ranks; "
            f"{found.total / 1e9:.4g} GB stay on "
            "the device",
        )


def _reduces() -> Iterator[Question]:
    cases: tuple[tuple[float, int, Link], ...] = (
        (1e3, 8, NVLINK4),
        (21e6, 2, NVLINK4),
        (100e6, 8, NVLINK4),
        (2e9, 8, NVLINK4),
        (2e9, 8, PCIE5),
        (2e9, 64, NETWORK),
        (14e9, 64, NETWORK),
    )
    for size, ranks, link in cases:
        yield Question(
            topic="all-reduce",
            text=f"An all-reduce of {_bytes(size)} over {ranks} ranks by {link.name} "
            f"(alpha {link.alpha_us:g} us, beta {link.beta_gb_s:g} GB/s). How many ms?",
            answer=all_reduce(size, ranks, link),
            unit="ms",
            why="a ring takes 2(n-1) alpha + 2(n-1)/n bytes/beta, a tree 2 ceil(log2 n) alpha + 2 "
            "bytes/beta; the quicker one",
            tolerance=0.1,
        )


def _gathers() -> Iterator[Question]:
    for billions, ranks, link in ((7, 8, NVLINK4), (7, 64, NETWORK), (70, 8, NVLINK4)):
        yield Question(
            topic="all-gather",
            text=f"ZeRO-3 gathers all weights of {billions} billion bf16 parameters once, over {ranks} ranks "
            f"by {link.name} "
            f"(beta {link.beta_gb_s:g} GB/s). How many ms?",
            answer=all_gather(training_state(billions * BILLION, Sharding(zero=0)).weights, ranks, link),
            unit="ms",
            why="(n-1) alpha + (n-1)/n bytes/beta: everybody has a share already, and half of an all-reduce "
            "is enough",
            tolerance=0.1,
        )


def _messages() -> Iterator[Question]:
    for size, link in ((1e3, NVLINK4), (1e6, NVLINK4), (1e9, NVLINK4), (1e9, PCIE5), (1e9, NETWORK)):
        yield Question(
            topic="message",
            text=f"One message of {_bytes(size)} by {link.name} (alpha {link.alpha_us:g} us, beta "
            f"{link.beta_gb_s:g} GB/s). "
            "How many ms?",
            answer=point_to_point(size, link),
            unit="ms",
            why="alpha + bytes/beta: below alpha times beta bytes the latency is most of it",
        )


def _bubbles() -> Iterator[Question]:
    cases: tuple[tuple[Schedule, int, int, int], ...] = (
        ("gpipe", 4, 4, 1),
        ("gpipe", 4, 16, 1),
        ("1f1b", 4, 16, 1),
        ("1f1b", 8, 64, 1),
        ("interleaved", 4, 16, 2),
        ("zero-bubble-h1", 4, 16, 1),
        ("zero-bubble-h2", 4, 16, 1),
    )
    for schedule, stages, parts, chunks in cases:
        found = explain_bubble(schedule, stages, parts, chunks)
        each = f", {chunks} parts of the model a stage" if chunks > 1 else ""
        yield Question(
            topic="bubble",
            text=f"A {schedule} pipeline of {stages} stages, {parts} micro-batches{each}. "
            "What share of the time does a stage wait, in %?",
            answer=found.value,
            unit="%",
            why=found.said,
        )


def _held() -> Iterator[Question]:
    cases: tuple[tuple[Schedule, int, int], ...] = (
        ("gpipe", 4, 32),
        ("1f1b", 4, 32),
        ("zero-bubble-h2", 4, 32),
    )
    for schedule, stages, parts in cases:
        yield Question(
            topic="held",
            text=f"A {schedule} pipeline of {stages} stages, {parts} micro-batches. "
            "Of how many micro-batches does the fullest stage hold activations?",
            answer=held_micro_batches(schedule, stages, parts),
            unit="micro-batches",
            why="GPipe holds all until the backward passes begin; 1F1B as many as there are stages; H2 holds "
            "more to wait less",
        )


def _windows() -> Iterator[Question]:
    for name, frames in (
        ("wan2.1-t2v-1.3b", 9),
        ("wan2.1-t2v-1.3b", 21),
        ("wan2.1-t2v-14b", 6),
        ("wan2.1-t2v-14b", 21),
    ):
        spec = find_model(name)
        stream = replace(spec.stream, window=frames)
        tokens = frames * tokens_per_frame(spec.dit, stream)
        yield Question(
            topic="keys and values",
            text=f"A video model with {spec.dit.layers} layers of width {spec.dit.width} attends to {frames} "
            "latent frames, "
            f"{tokens} tokens. How many GiB are keys and values of one session in bf16?",
            answer=window_bytes(spec.dit, stream, value_bytes=2) / GIB,
            unit="GiB",
            why="2 (keys and values) * tokens * layers * width * 2 bytes; it grows with the context, weights "
            "do not",
        )


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} bytes"
