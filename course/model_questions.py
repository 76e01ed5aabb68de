"""The quiz's questions of parts III and IV: serving language models and learning from reward. Computed, like
all others."""

from __future__ import annotations

from collections.abc import Iterator

from course.chapters.cpu_overhead.pretend_device import PretendDevice
from course.chapters.four_models.reward_calculator import best_share
from course.chapters.kv_cache.kv_calculator import SHOWN
from course.chapters.rl_system.placements import CARDS, LEARN_S, WRITE_S, apart_s
from course.question import Question
from millstream.core.config import GIB
from millstream.planner.communication import point_to_point
from millstream.planner.hardware import DEVICES, NETWORK, NVLINK4
from millstream.planner.language.serving import tokens_a_call
from millstream.planner.training import PRECISIONS, Sharding, training_state

BILLION = 10**9
H200_TB_S = DEVICES["h200"].bandwidth_tb_s
"""Memory bandwidth in TB/s, from the datasheet."""


def model_questions() -> Iterator[Question]:
    for topic in (_caches, _decodes, _pages, _launches, _proposals, _roles, _prices, _placements, _updates):
        yield from topic()


def _caches() -> Iterator[Question]:
    for number, tokens in ((0, 4096), (1, 8192), (2, 32768), (2, 131072), (3, 32768)):
        shape = SHOWN[number]
        yield Question(
            topic="cache",
            text=f"{shape.layers} layers, {shape.kv_heads} heads of keys of width {shape.head_width}, bf16. "
            f"How many GiB are keys and values of {tokens} tokens?",
            answer=shape.kv_bytes(tokens) / GIB,
            unit="GiB",
            why=f"2 * layers * heads * width * 2 bytes = {shape.kv_bytes(1) / 1024:.0f} KiB a token, times "
            "tokens",
        )


def _decodes() -> Iterator[Question]:
    for billions in (7, 70):
        weights = training_state(billions * BILLION, Sharding(zero=0)).weights
        yield Question(
            topic="decode",
            text=f"A decode step reads all weights of {billions} billion bf16 parameters at {H200_TB_S:g} "
            "TB/s. "
            "How many ms at least?",
            answer=weights / (H200_TB_S * 1e9),
            unit="ms",
            why="2 bytes a parameter over the bandwidth; however many requests share the step, it is read once",
        )


def _pages() -> Iterator[Question]:
    for longest, mean, page in ((2048, 300, 16), (8192, 500, 64)):
        yield Question(
            topic="paging",
            text=f"Texts of {mean} tokens on average, {longest} at most, pages of {page}. "
            "How many times as many texts fit in pages as in room for the longest, about?",
            answer=longest / (mean + page / 2),
            unit="times",
            why="in pages a text takes its own length and half a page on average; otherwise it takes the "
            "longest",
            tolerance=0.1,
        )


def _launches() -> Iterator[Question]:
    for kernels, launch, kernel in ((400, 6.0, 2.0), (400, 6.0, 12.0)):
        eager = PretendDevice(launch_us=launch)
        graph = PretendDevice(launch_us=launch)
        for _ in range(kernels):
            eager.launch(kernel)
        graph.launch(*[kernel] * kernels)
        yield Question(
            topic="launches",
            text=f"{kernels} kernels of {kernel:g} us, a launch takes {launch:g} us. "
            "How many times as fast is the step as one CUDA graph?",
            answer=eager.device_us / graph.device_us,
            unit="times",
            why="one by one a kernel takes as long as the slower of launch and kernel; as a graph, as long "
            "as the kernel",
        )


def _proposals() -> Iterator[Question]:
    for kept, ahead in ((0.7, 3), (0.8, 4), (0.9, 8), (0.5, 8)):
        yield Question(
            topic="speculation",
            text=f"{kept:.0%} of proposals are kept, {ahead} are made a call. How many tokens does a call "
            "bring?",
            answer=tokens_a_call(kept, ahead),
            unit="tokens",
            why="1 + a + a^2 + ...: the k-th is of use only if all before it were kept",
        )


def _roles() -> Iterator[Question]:
    for billions, shards in ((7, 1), (7, 16), (70, 64)):
        sharding = Sharding(zero=3, shards=shards)
        learns, answers = (
            training_state(billions * BILLION, sharding, trained=trained).total for trained in (None, 0)
        )
        yield Question(
            topic="four models",
            text=f"Actor, critic, reward and reference of {billions} billion parameters each, all in shards "
            f"over {shards} "
            "devices, Adam in mixed precision. How many GB of state a device?",
            answer=2 * (learns + answers) / 1e9,
            unit="GB",
            why=f"two learn at {sum(PRECISIONS['mixed']):g} bytes a parameter, two answer at 2, over the "
            "shards",
        )


def _prices() -> Iterator[Question]:
    for share, gain, price in ((0.1, 2.0, 1.0), (0.1, 2.0, 0.5), (0.01, 5.0, 1.0)):
        yield Question(
            topic="price of distance",
            text=f"A reference does something {share:.0%} of the time, it brings {gain:g} more reward, a nat "
            "of distance costs "
            f"{price:g}. How often does the best policy do it, in %?",
            answer=100 * best_share(share, gain, price),
            unit="%",
            why="the best policy is the reference times e^(reward / price): the odds grow by that factor",
        )


def _placements() -> Iterator[Question]:
    for writers, is_late in ((8, False), (12, True)):
        how = "at once, a step late" if is_late else "in turns"
        yield Question(
            topic="placement",
            text=f"A step is {WRITE_S:g} device seconds of writing and {LEARN_S:g} of learning. Of {CARDS} "
            f"devices {writers} "
            f"write and the others learn, {how}. How many seconds?",
            answer=apart_s(WRITE_S, LEARN_S, CARDS, writers, is_late=is_late),
            unit="s",
            why="each side's device seconds over its devices: added up in turns, the slower one where both "
            "work at once",
        )


def _updates() -> Iterator[Question]:
    for billions, link in ((7, NVLINK4), (7, NETWORK), (70, NETWORK)):
        weights = training_state(billions * BILLION, Sharding(zero=0)).weights
        yield Question(
            topic="new weights",
            text=f"{billions} billion bf16 parameters are sent once by {link.name} ({link.beta_gb_s:g} "
            "GB/s). How many ms?",
            answer=point_to_point(weights, link),
            unit="ms",
            why="2 bytes a parameter over the bandwidth; the latency is nothing beside it",
        )
