"""Questions on papers of what travels: buckets, rings, trees."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course.question import Question, asked, rates_of
from millstream.planner.communication import all_reduce
from millstream.planner.hardware import NETWORK, NVLINK4


def questions() -> Iterator[Question]:
    for paper in (_ddp, _ring, _nccl):
        yield from paper()


def _ddp() -> Iterator[Question]:
    millions = 340
    mib = 25
    size = millions * 4e6
    bucket = mib * 2**20
    count = math.ceil(size / bucket)
    yield asked(
        "ddp",
        f"{millions} million gradients in float32, buckets of {mib} MiB. How many all-reduces a step?",
        count,
        "all-reduces",
        "bytes over the bucket's size, rounded up",
    )
    one = all_reduce(size, 32, NETWORK)
    many = count * all_reduce(size / count, 32, NETWORK)
    yield asked(
        "ddp",
        f"32 ranks by the network ({rates_of(NETWORK)}): how many ms longer do {count} buckets of "
        f"{size / 1e9:.3g} GB "
        "in all take than one sum?",
        many - one,
        "ms",
        "each pays its own latency; what is won is that all but the last hide behind the backward pass",
    )
    yield asked(
        "ddp",
        f"If only the last of {count} equal buckets has nothing to hide behind, what share of the talk is "
        "hidden, in %?",
        100 * (count - 1) / count,
        "%",
        "smaller buckets leave less at the end, and pay alpha more often: the reason for a size in between",
    )


def _ring() -> Iterator[Question]:
    gigabytes = 1
    for ranks in (4, 16):
        yield asked(
            "ring",
            f"An all-reduce of {gigabytes} GB around a ring of {ranks}: how many GB does each rank send?",
            2 * (ranks - 1) / ranks * gigabytes,
            "GB",
            "(n-1)/n to scatter sums, (n-1)/n to gather them; no algorithm sends less, and none gets worse "
            "with n than 2",
        )
    yield asked(
        "ring",
        "How many messages does each of 16 ranks around a ring send for one all-reduce?",
        2 * (16 - 1),
        "messages",
        "2(n-1), which is what small sums wait for",
    )


def _nccl() -> Iterator[Question]:
    size = 1e9
    ranks = 8
    time = all_reduce(size, ranks, NVLINK4)
    yield asked(
        "nccl",
        f"A test reports {time:.3g} ms for an all-reduce of {size / 1e9:g} GB over {ranks} cards. What is "
        "its bus bandwidth, "
        "in GB/s?",
        2 * (ranks - 1) / ranks * size / time / 1e6,
        "GB/s",
        "2(n-1)/n bytes over time: what each link carried, to be compared with the link's own",
    )
    many = 1024
    ring = 2 * (many - 1)
    tree = 2 * math.ceil(math.log2(many))
    yield asked(
        "nccl",
        f"{many} ranks, alpha {NETWORK.alpha_us:g} us, hardly any bytes. How many times as long does a ring "
        "wait as a tree "
        "there and back?",
        ring / tree,
        "times",
        "2(n-1) messages one after another against 2 log2 n",
    )
    half = NETWORK.beta_gb_s * 1e3 * NETWORK.alpha_us * (2 * 63 - 12) / (2 - 2 * 63 / 64) / 1e6
    yield asked(
        "nccl",
        f"64 ranks, {rates_of(NETWORK)}. Up to how many MB is a tree (2 bytes/beta) quicker than a ring "
        "(2(n-1)/n bytes/beta)?",
        half,
        "MB",
        "where 2(n-1) alpha + 2(n-1)/n b/beta equals 2 log2(n) alpha + 2 b/beta; NCCL runs two trees at "
        "once, which lose no "
        "bandwidth, and stays with them for longer",
    )
