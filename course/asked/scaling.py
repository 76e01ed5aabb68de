"""Questions of why scaling stalls: what of a step is talk, where latency takes over, what a placement
holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.question import Question
from millstream.core.config import GIB
from millstream.planner.bubbles import bubble
from millstream.planner.communication import all_reduce, all_to_all, broadcast
from millstream.planner.explain import explain_bubble
from millstream.planner.hardware import NETWORK, NVLINK4, PCIE5, Link, parse_fleet
from millstream.planner.language.decoders import find_decoder
from millstream.planner.language.explain import explain_language, explain_sum
from millstream.planner.language.learning import DecoderWork, data_talk, decoder_learning_time, step_ms
from millstream.planner.language.rewards import RewardAsk, reward_placements
from millstream.planner.language.serving import ServingAsk, decode_time
from millstream.planner.training import Sharding

TEXTS = 128
TOKENS = 4096
"""In a step, however many ranks share them, and of each text."""


def scaling_questions() -> Iterator[Question]:
    for topic in (_stalls, _weak, _latency, _machines, _sums, _experts, _fillings, _four_models, _updates):
        yield from topic()


def _work(ranks: int, *, zero: int = 1, batch: int | None = None) -> DecoderWork:
    each = TEXTS // ranks if batch is None else batch
    fleet = parse_fleet(f"{ranks}xH100")
    return DecoderWork(
        decoder=find_decoder("7b"), fleet=fleet, context=TOKENS, batch=each, sharding=Sharding(zero=zero)
    )


def _stalls() -> Iterator[Question]:
    for ranks in (16, 32, 64, 128):
        work = _work(ranks)
        computed = decoder_learning_time(work).total
        talked = data_talk(work)
        grows = replace(work, fleet=parse_fleet("8xH100"), batch=TEXTS // 8)
        yield Question(
            topic="stall",
            text=f"A step of {TEXTS} texts is computed in {decoder_learning_time(grows).total:.0f} ms by 8 "
            "ranks, and the sum "
            f"of 7B gradients takes {talked:.0f} ms over {ranks} ranks of the network, hidden as far as it "
            "goes. "
            f"How many ms does the step take with {ranks} ranks?",
            answer=step_ms(work),
            unit="ms",
            why=f"max(computing, talking) = max({computed:.0f}, {talked:.0f}): computing shrinks, a sum's "
            "bytes do not; " + explain_sum(2.0 * work.decoder.parameters, ranks, NETWORK).said,
        )
    work = _work(64)
    one = decoder_learning_time(_work(1)).total
    yield Question(
        topic="stall",
        text=f"One rank computes a step of {TEXTS} texts in {one / 1e3:.0f} s, the sum of 7B gradients by "
        "the network takes "
        f"{data_talk(work):.0f} ms whatever their number. From how many ranks on does computing not hide it?",
        answer=one / data_talk(work),
        unit="ranks",
        why="where computing over ranks equals the sum; beyond it more ranks bring nothing unless each gets "
        "more texts",
        tolerance=0.1,
    )


def _weak() -> Iterator[Question]:
    for batch in (1, 4):
        work = _work(64, zero=3, batch=batch)
        computed = decoder_learning_time(work).total
        talked = data_talk(work)
        yield Question(
            topic="stall",
            text=f"ZeRO-3 over 64 H100 by the network, 7B: a rank computes {batch} texts in {computed:.0f} "
            "ms, gathering "
            f"weights twice and scattering gradients takes {talked:.0f} ms, hidden as far as it goes. What "
            "share of "
            "the step does the device wait, in %?",
            answer=100 * (1 - computed / step_ms(work)),
            unit="%",
            why="the step takes the longer of the two; talk is the same for one text as for many, so larger "
            "batches hide it",
        )
    plain = data_talk(_work(64))
    sharded = data_talk(_work(64, zero=3))
    yield Question(
        topic="stall",
        text="How many times as long does ZeRO-3 talk as plain copies whose gradients are summed, both in bf16?",
        answer=sharded / plain,
        unit="times",
        why="two gathers and a scatter, each half of a sum: three halves",
    )


def _latency() -> Iterator[Question]:
    for link in (NVLINK4, PCIE5, NETWORK):
        yield Question(
            topic="latency",
            text=f"By {link.name} (alpha {link.alpha_us:g} us, beta {link.beta_gb_s:g} GB/s), a message of "
            "how many kB is half "
            "latency, half bytes?",
            answer=link.alpha_us * link.beta_gb_s,
            unit="kB",
            why="alpha = bytes/beta at bytes = alpha * beta; below it, sending less saves nothing",
        )
    for size in (1e5, 1e9):
        yield Question(
            topic="latency",
            text=f"An all-reduce of {size / 1e6:g} MB by the network (alpha {NETWORK.alpha_us:g} us, beta "
            f"{NETWORK.beta_gb_s:g} GB/s): how many times as long over 64 ranks as over 8?",
            answer=all_reduce(size, 64, NETWORK) / all_reduce(size, 8, NETWORK),
            unit="times",
            why=explain_sum(size, 64, NETWORK).said,
        )


def _machines() -> Iterator[Question]:
    """Tensor parallel within a machine, and beyond it."""
    for gpus in ("2xH100", "8xH100", "16xH100"):
        ask = ServingAsk(decoder=find_decoder("70b"), fleet=parse_fleet(gpus), context=TOKENS)
        time = decode_time(ask)
        link = ask.fleet.link_between(ask.fleet.count)
        yield Question(
            topic="tensor parallel",
            text=f"llama-3-70b writes a token on {gpus}: reading takes {time.read:.3g} ms, "
            f"{2 * ask.decoder.layers} sums of "
            f"{2 * ask.decoder.width / 1e3:.0f} kB by {link.name} (alpha {link.alpha_us:g} us) the rest. "
            "What share of the "
            "time is sums, in %?",
            answer=100 * time.talked / time.total,
            unit="%",
            why=explain_language("decode", ask).said,
            tolerance=0.1,
        )


def _sums() -> Iterator[Question]:
    for model, ranks, link in (("7b", 8, NVLINK4), ("70b", 64, NETWORK), ("405b", 1024, NETWORK)):
        d = find_decoder(model)
        found = explain_sum(2.0 * d.parameters, ranks, link)
        yield Question(
            topic="gradients",
            text=f"Gradients of {d.name} ({d.parameters / 1e9:.4g} billion) in bf16 are summed over {ranks} "
            "ranks by "
            f"{link.name} ({link.beta_gb_s:g} GB/s). How many ms?",
            answer=found.value,
            unit="ms",
            why=found.said,
        )


def _experts() -> Iterator[Question]:
    cases: tuple[tuple[int, Link], ...] = ((8, NVLINK4), (64, NETWORK))
    for ranks, link in cases:
        d = find_decoder("mixtral-8x7b")
        size = TOKENS * d.active * d.width * 2
        yield Question(
            topic="experts",
            text=f"Experts on {ranks} ranks: each sends {TOKENS} tokens of width {d.width} in bf16 to "
            f"{d.active} experts each, "
            f"by {link.name} (alpha {link.alpha_us:g} us, beta {link.beta_gb_s:g} GB/s). How many ms is the "
            "all-to-all?",
            answer=all_to_all(size, ranks, link),
            unit="ms",
            why="(n-1) alpha + (n-1)/n bytes/beta, of what a rank sends; and the same to bring the answers back",
            tolerance=0.1,
        )


def _fillings() -> Iterator[Question]:
    for stages, most in ((4, 0.1), (8, 0.1), (8, 0.05)):
        parts = next(m for m in range(1, 10000) if bubble("1f1b", stages, m) <= most)
        yield Question(
            topic="bubble",
            text=f"How many micro-batches does a 1F1B pipeline of {stages} stages need so that stages wait "
            f"{most:.0%} at most?",
            answer=parts,
            unit="micro-batches",
            why=explain_bubble("1f1b", stages, parts, 1).said,
            tolerance=0.0,
        )


def _four_models() -> Iterator[Question]:
    work = replace(_work(8, zero=3, batch=8), context=2048)
    d = work.decoder
    kept = work.decoder.kv_bytes(work.batch * work.context)
    ask = RewardAsk(work=work, critic=find_decoder("7b"), reward=find_decoder("7b"), answer=1024)
    found = {each.name: each.groups[0].total for each in reward_placements(ask)}
    yield Question(
        topic="four models",
        text=f"Actor, critic, reference and reward of 7B on 8 H100 write {work.batch} texts of "
        f"{work.context} tokens a device "
        f"at {d.kv_bytes(1) / 1024:g} KiB a token, from whole weights that the 8 share. How many GiB less "
        "does a device hold "
        "in turns (what learns is in host memory while answers are written) than together, where learning is "
        "the fuller turn?",
        answer=(found["together"] - found["in turns"]) / GIB,
        unit="GiB",
        why=f"what only writing needs: keys and values of {work.batch} texts, {kept / GIB:g} GiB, and an "
        "eighth of "
        f"{2e-9 * d.parameters:.3g} GB of weights",
    )


def _updates() -> Iterator[Question]:
    for model, writers in (("7b", 8), ("70b", 32)):
        size = 2.0 * find_decoder(model).parameters
        yield Question(
            topic="new weights",
            text=f"A step's new weights of {model} in bf16, {size / 1e9:.4g} GB, are broadcast to {writers} "
            "devices that "
            f"write, by the network ({NETWORK.beta_gb_s:g} GB/s). How many ms?",
            answer=broadcast(size, writers + 1, NETWORK),
            unit="ms",
            why="bytes/beta, cut into pieces that are passed on; a message to begin at each of log2 steps is "
            "nothing beside it",
        )
