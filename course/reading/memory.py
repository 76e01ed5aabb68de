"""Questions on papers of what a device holds: ZeRO and its kin, precision, pages."""

from __future__ import annotations

from collections.abc import Iterator

from course.question import Question, asked, rates_of
from millstream.core.config import GIB
from millstream.planner.communication import all_gather, point_to_point
from millstream.planner.explain import explain_adam
from millstream.planner.hardware import DEVICES, NVLINK4, PCIE5, parse_fleet
from millstream.planner.language.decoders import find_decoder
from millstream.planner.language.learning import DecoderWork, gathered_bytes
from millstream.planner.training import ADAM_BYTES, Sharding, training_state


def questions() -> Iterator[Question]:
    for paper in (_zero, _infinity, _fsdp, _mixed, _paged):
        yield from paper()


def _zero() -> Iterator[Question]:
    billions = 7.5
    for stage, name in ((1, "the optimiser"), (2, "gradients too"), (3, "weights too")):
        found = explain_adam(billions * 1e9, Sharding(zero=stage, shards=64))
        yield asked(
            "zero",
            f"{billions} billion parameters, Adam in mixed precision, 64 devices share {name}. GB a device?",
            found.value,
            "GB",
            found.said,
        )


def _infinity() -> Iterator[Question]:
    state = training_state(10**12, Sharding(zero=0))
    yield asked(
        "zero_infinity",
        "A trillion parameters with Adam in mixed precision: how many TB of state?",
        state.total / 1e12,
        "TB",
        f"{state.total / 1e12:g} bytes a parameter: more than a hundred large cards, or the disks of a few "
        "machines",
    )
    cards = 512
    share = point_to_point(state.weights / cards, PCIE5)
    yield asked(
        "zero_infinity",
        f"The bf16 weights of a trillion parameters lie in the hosts of {cards} cards, each fetches its "
        "share by its own bus "
        f"at {PCIE5.beta_gb_s:g} GB/s. How many ms?",
        share,
        "ms",
        f"{state.weights / 1e12:g} TB over {cards} buses: bandwidth adds up if every rank reads a part, and "
        "does not if one "
        "reads for all",
    )
    rate = DEVICES["h100"].rates.matmul_tflops
    yield asked(
        "zero_infinity",
        f"Weights in bf16 are fetched at {PCIE5.beta_gb_s:g} GB/s while the last ones multiply tokens at "
        f"{rate:.0f} TFLOP/s. "
        "From how many tokens on is fetching hidden in a forward pass?",
        rate * 1e3 / PCIE5.beta_gb_s,
        "tokens",
        "two operations a parameter and token against two bytes a parameter: tokens = rate / bandwidth",
    )


def _fsdp() -> Iterator[Question]:
    work = DecoderWork(decoder=find_decoder("7b"), fleet=parse_fleet("64xH100"), context=4096, batch=1)
    block = 2 * work.decoder.block_parameters(1)
    yield asked(
        "fsdp",
        f"llama-2-7b, wrapped block by block, {block / 1e6:.0f} MB each in bf16: the one at work and the "
        "next are whole. How "
        "many GiB beside the shards?",
        gathered_bytes(work) / GIB,
        "GiB",
        "two blocks of 32; wrapped as one unit it would be the whole model",
    )
    yield asked(
        "fsdp",
        f"Gathering a block of {block / 1e6:.0f} MB over 8 cards ({rates_of(NVLINK4)}): how many ms?",
        all_gather(block, 8, NVLINK4),
        "ms",
        "(n-1) alpha + (n-1)/n bytes/beta; hidden if a block computes for longer than that",
    )
    hybrid, whole = (training_state(7 * 10**9, Sharding(zero=3, shards=shards)).total for shards in (8, 64))
    yield asked(
        "fsdp",
        "64 cards, hybrid sharding within machines of 8. How many times the state of full sharding does a "
        "card hold?",
        hybrid / whole,
        "times",
        "shards of an eighth instead of a 64th; weights are gathered inside the machine, only gradients "
        "leave it",
    )


def _mixed() -> Iterator[Question]:
    smallest = 2.0**-24
    yield asked(
        "mixed_precision",
        "The smallest number above 0 in fp16 is 2^-24. A loss is scaled by a power of two. By which at "
        "least, so that a "
        "gradient of 2^-27 is not 0?",
        smallest / 2.0**-27,
        "times",
        "gradients scale with the loss, and powers of two change no digits; by 4 it would be 2^-25, which is "
        "rounded to 0",
    )
    yield asked(
        "mixed_precision",
        "bf16 keeps 7 bits after the leading one. How far above 1 is the next number, in thousandths?",
        2.0**-7 * 1e3,
        "thousandths",
        "what adds less than half of that to 1 is lost, so weights are added to in float32",
    )
    alone = training_state(1, Sharding(zero=0)).total
    yield asked(
        "mixed_precision",
        f"Of {alone:g} bytes a parameter (weight, gradient, Adam with a float32 copy), what share is that "
        "copy, in %?",
        100 * (ADAM_BYTES - 8) / alone,
        "%",
        "4 of 16: the price of not losing small updates",
    )


def _paged() -> Iterator[Question]:
    d = find_decoder("13b")
    page = 16
    longest = 2048
    mean = 300
    wasted = (page - 1) / 2
    yield asked(
        "paged_attention",
        f"A 13B model has {d.layers} layers of width {d.width}, every head its own keys, fp16. How many KiB "
        "a token?",
        d.kv_bytes(1) / 1024,
        "KiB",
        f"2 * layers * width * 2 bytes; at {longest} tokens {d.kv_bytes(longest) / 1e9:.1f} GB a text",
    )
    yield asked(
        "paged_attention",
        f"Pages of {page} tokens, {d.kv_bytes(1) / 1024:g} KiB a token. How many MiB does a text waste on "
        "average, if its end "
        "is anywhere in its last page?",
        d.kv_bytes(wasted) / 2**20,
        "MiB",
        f"0 to {page - 1} tokens are empty, {wasted} on average; one page is the most that is lost",
    )
    yield asked(
        "paged_attention",
        f"If room for {longest} tokens is reserved for each text and texts have {mean} on average, what "
        "share of it is never "
        "used, in %?",
        100 * (1 - mean / longest),
        "%",
        f"why up to {longest / mean:.1f} times as many texts fit, and a step serves so many more for one "
        "reading of the "
        "weights",
    )
