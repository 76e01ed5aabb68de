"""Questions on papers of what a GPU does while a kernel runs: attention without its square."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course.question import Question, asked
from millstream.core.chunk_work import attention_flops
from millstream.planner.hardware import DEVICES
from millstream.planner.time import head_share
from millstream.planner.training import BACK_OVER_FORWARD

QUERIES = 128
"""Queries of one head that a multiprocessor takes at a time."""
A100 = DEVICES["a100"]
H100 = DEVICES["h100"]


def questions() -> Iterator[Question]:
    for paper in (_first, _second, _third):
        yield from paper()


def _first() -> Iterator[Question]:
    heads = 32
    tokens = 8192
    yield asked(
        "flash_attention",
        f"{heads} heads, {tokens} tokens, bf16: how many MiB are all scores of one layer, if they are "
        "written down?",
        heads * tokens**2 * 2 / 2**20,
        "MiB",
        "heads * tokens^2 * 2 bytes; tiles of it never leave the chip",
    )
    kilobytes = 100
    width = 64
    yield asked(
        "flash_attention",
        f"Reads and writes fall from about N^2 to N^2 d^2 / M. With {kilobytes} kB of fast memory for "
        "numbers of two bytes and "
        f"heads {width} wide, by how many times?",
        kilobytes * 1e3 / 2 / width**2,
        "times",
        "M / d^2: more fast memory helps, wider heads hurt",
    )
    yield asked(
        "flash_attention",
        "Forward two products of queries with keys or values; back the scores are made again, then four. How "
        "many times the "
        "forward work is the backward?",
        BACK_OVER_FORWARD,
        "times",
        "five products against two: more operations than before, and quicker, because less is read and "
        "written",
    )


def _second() -> Iterator[Question]:
    yield asked(
        "flash_attention_2",
        f"One text, 16 heads, a block for each head: what share of {A100.multiprocessors} multiprocessors "
        "has work, in %?",
        100 * 16 / A100.multiprocessors,
        "%",
        "which is why blocks are also made along the queries",
    )
    heads = 16
    queries = 8192
    share = head_share(queries, heads, A100)
    blocks = heads * queries // QUERIES
    yield asked(
        "flash_attention_2",
        f"{heads} heads of {queries} queries in blocks of {QUERIES}: what share of {A100.multiprocessors} "
        "multiprocessors is "
        "busy on average, the last wave counted?",
        100 * share,
        "%",
        f"{blocks} blocks in {math.ceil(blocks / A100.multiprocessors)} waves: the last is not full",
    )
    tokens = 16384
    width = 2048
    flops = attention_flops(tokens, tokens, width) / 2
    rate = A100.rates.attention_tflops
    yield asked(
        "flash_attention_2",
        f"Causal attention of {tokens} tokens and width {width} at {rate:.0f} TFLOP/s on an A100: how many "
        "ms forward?",
        flops / rate / 1e9,
        "ms",
        "4 tokens^2 width, and half of it, since blocks above the diagonal are left out",
    )


def _third() -> Iterator[Question]:
    reached = 740  # the paper's, in TFLOP/s, and the heads that it speaks of
    exponentials = 3.9
    width = 128
    yield asked(
        "flash_attention_3",
        f"{reached} TFLOP/s in fp16 of {H100.bf16_tflops:g}: what share, in %?",
        100 * reached / H100.bf16_tflops,
        "%",
        "FlashAttention 2 reached about a third on the same card",
    )
    exp = 1 / exponentials / (4 * width / H100.bf16_tflops)
    yield asked(
        "flash_attention_3",
        f"Heads {width} wide: {4 * width} operations in products for each exponential. Products run at "
        f"{H100.bf16_tflops:g} "
        f"TFLOP/s, exponentials at {exponentials}. How long are exponentials, in % of the products?",
        100 * exp,
        "%",
        "so they must run while products do: two groups of warps take turns",
    )
    gain = H100.rates.attention_tflops / H100.rates.attention_rate("flash2")
    yield asked(
        "flash_attention_3",
        f"The planner has attention at {H100.rates.attention_tflops:.0f} TFLOP/s on an H100 and "
        "FlashAttention 2 at "
        f"{H100.rates.attention_rate('flash2'):.0f}. How many times as quick?",
        gain,
        "times",
        "measured on an H200 by this project; the paper says 1.5 to 2",
    )
