"""Questions on papers of what a GPU does while a kernel runs: attention without its square."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.course.question import Question
from millstream.course.reading.asking import asked
from millstream.planner.flops import attention_flops
from millstream.planner.hardware import DEVICES
from millstream.planner.time import head_share
from millstream.planner.training import BACK_OVER_FORWARD

A100, H100 = DEVICES["a100"], DEVICES["h100"]


def questions() -> Iterator[Question]:
    for paper in (_first, _second, _third):
        yield from paper()


def _first() -> Iterator[Question]:
    yield asked(
        "flash_attention",
        "32 heads, 8192 tokens, bf16: how many MiB are all scores of one layer, if they are written down?",
        32 * 8192**2 * 2 / 2**20,
        "MiB",
        "heads * tokens^2 * 2 bytes; tiles of it never leave the chip",
    )
    memory, width = 100e3 / 2, 64
    yield asked(
        "flash_attention",
        "Reads and writes fall from about N^2 to N^2 d^2 / M. With 100 kB of fast memory for numbers of two bytes and heads "
        "64 wide, by how many times?",
        memory / width**2,
        "times",
        "M / d^2: more fast memory helps, wider heads hurt",
    )
    yield asked(
        "flash_attention",
        "Forward two products of queries with keys or values; back the scores are made again, then four. How many times the "
        "forward work is the backward?",
        BACK_OVER_FORWARD,
        "times",
        "five products against two: more operations than before, and quicker, because less is read and written",
    )


def _second() -> Iterator[Question]:
    yield asked(
        "flash_attention_2",
        f"One text, 16 heads, a block for each head: what share of {A100.multiprocessors} multiprocessors has work, in %?",
        100 * 16 / A100.multiprocessors,
        "%",
        "which is why blocks are also made along the queries",
    )
    share = head_share(8192, 16, A100)
    yield asked(
        "flash_attention_2",
        f"16 heads of 8192 queries in blocks of 128: what share of {A100.multiprocessors} multiprocessors is busy on average, "
        "the last wave counted?",
        100 * share,
        "%",
        "1024 blocks in ten waves: the last is not full",
    )
    flops, rate = attention_flops(16384, 16384, 2048) / 2, A100.rates.attention_tflops
    yield asked(
        "flash_attention_2",
        f"Causal attention of 16384 tokens and width 2048 at {rate:.0f} TFLOP/s on an A100: how many ms forward?",
        flops / rate / 1e9,
        "ms",
        "4 tokens^2 width, and half of it, since blocks above the diagonal are left out",
    )


def _third() -> Iterator[Question]:
    yield asked(
        "flash_attention_3",
        f"740 TFLOP/s in fp16 of {H100.bf16_tflops:g}: what share, in %?",
        100 * 740 / H100.bf16_tflops,
        "%",
        "FlashAttention 2 reached about a third on the same card",
    )
    exp = 1 / 3.9 / (4 * 128 / H100.bf16_tflops)
    yield asked(
        "flash_attention_3",
        f"Heads 128 wide: 512 operations in products for each exponential. Products run at {H100.bf16_tflops:g} TFLOP/s, "
        "exponentials at 3.9. How long are exponentials, in % of the products?",
        100 * exp,
        "%",
        "so they must run while products do: two groups of warps take turns",
    )
    gain = H100.rates.attention_tflops / H100.rates.attention_rate("flash2")
    yield asked(
        "flash_attention_3",
        f"The planner has attention at {H100.rates.attention_tflops:.0f} TFLOP/s on an H100 and FlashAttention 2 at "
        f"{H100.rates.attention_rate('flash2'):.0f}. How many times as quick?",
        gain,
        "times",
        "measured on an H200 by this project; the paper says 1.5 to 2",
    )
