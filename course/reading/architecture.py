"""Questions on papers of how models are cut: tensors, layers, time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.question import Question, asked, rates_of
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB, TEMPORAL_STRIDE, pixel_frames
from millstream.core.presets import find_model
from millstream.planner.bubbles import bubble, held_micro_batches
from millstream.planner.communication import all_gather, all_reduce
from millstream.planner.explain import explain_bubble
from millstream.planner.hardware import NETWORK, NVLINK4
from millstream.planner.language.decoders import DecoderConfig, find_decoder
from millstream.planner.language.learning import block_activations
from millstream.planner.memory import window_bytes

SMALL = find_model("wan2.1-t2v-1.3b")
KEPT_BYTES = 34
"""A token and width, of a layer: the paper's own count."""


def questions() -> Iterator[Question]:
    for paper in (_megatron, _clusters, _sequence, _gpipe, _pipedream, _causvid, _self_forcing, _rolling):
        yield from paper()


def _megatron() -> Iterator[Question]:
    gpt = DecoderConfig(
        layers=72, width=3072, heads=32, kv_heads=32, ffn=4 * 3072, vocabulary=51200, gated=0, tied=1
    )
    text = (
        f"Megatron-LM's largest has {gpt.layers} layers of width {gpt.width}, MLPs four times as wide, "
        f"{gpt.vocabulary} words"
    )
    yield asked(
        "megatron",
        f"{text} and one embedding. How many billion parameters?",
        gpt.parameters / 1e9,
        "billion",
        "twelve squares of the width a layer, and the embedding",
    )
    yield asked(
        "megatron",
        f"{text}. How many all-reduces does tensor parallelism add to a forward and a backward pass?",
        4 * gpt.layers,
        "all-reduces",
        "one after attention and one after the MLP, and the same where gradients come back",
    )
    texts = 8
    tokens = 1024
    size = texts * tokens * gpt.width * 2
    yield asked(
        "megatron",
        f"A sum of tensor parallelism is of {texts} texts of {tokens} tokens and width {gpt.width} in fp16. "
        "How many MB?",
        size / 1e6,
        "MB",
        "tokens * width * 2 bytes; parallel or not, every rank has all tokens at full width there",
    )


def _clusters() -> Iterator[Question]:
    parameters = 175e9
    tokens = 300e9
    cards = 1024
    tflops = 140
    days = 8 * tokens * parameters / (cards * tflops * 1e12) / 86400
    yield asked(
        "megatron_clusters",
        f"{parameters / 1e9:g} billion parameters, {tokens / 1e9:g} billion tokens, eight operations of each "
        "with each (two "
        f"forward, two again, four back), {cards} cards at {tflops} TFLOP/s. How many days?",
        days,
        "days",
        "8 T P / (n X), the paper's own estimate",
    )
    found = explain_bubble("interleaved", 8, 64, 2)
    yield asked(
        "megatron_clusters",
        "8 stages, 64 micro-batches, every stage two parts of the model in turn. How long do stages wait, in %?",
        found.value,
        "%",
        found.said,
    )
    size = 2048 * 12288 * 2
    inside = all_reduce(size, 8, NVLINK4)
    outside = all_reduce(size, 16, NETWORK)
    yield asked(
        "megatron_clusters",
        f"One sum of {size / 1e6:.3g} MB over 8 cards of a machine ({rates_of(NVLINK4)}), or over 16 by the "
        f"network ({rates_of(NETWORK)}). How many times as long is the second?",
        outside / inside,
        "times",
        "why tensor parallelism stays inside a machine and pipelines go between them",
    )


def _sequence() -> Iterator[Question]:
    heads = 96
    tokens = 2048
    width = 12288
    scores = 5 * heads * tokens / width
    cut = 24
    whole = KEPT_BYTES - cut
    yield asked(
        "sequence_parallel",
        f"A layer keeps {KEPT_BYTES} bytes a token and width, and 5 heads*tokens/width more if scores are "
        "kept. Width "
        f"{width}, {heads} heads, {tokens} tokens: what share are scores, in %?",
        100 * scores / (KEPT_BYTES + scores),
        "%",
        "which is why making only these again saves most and costs little; fused attention never keeps them",
    )
    yield asked(
        "sequence_parallel",
        f"Of {KEPT_BYTES} bytes that a layer keeps, {cut} are divided by tensor parallelism, {whole} (norms, "
        "dropouts, inputs) "
        "are not, until they are split by tokens. With 8 cards, how many times less is kept with that split?",
        (whole + cut / 8) / (KEPT_BYTES / 8),
        "times",
        f"{whole} + {cut}/8 = {whole + cut / 8:g} against {KEPT_BYTES}/8 = {KEPT_BYTES / 8:g}",
    )
    size = 8 * 2048 * width * 2
    twice = 2 * all_gather(size, 8, NVLINK4) / all_reduce(size, 8, NVLINK4)
    yield asked(
        "sequence_parallel",
        "A scatter and a gather of a large tensor take the place of its all-reduce. How many times as long "
        "are both together?",
        twice,
        "times",
        "an all-reduce around a ring is a reduce-scatter and an all-gather: nothing is added",
    )


def _gpipe() -> Iterator[Question]:
    for parts in (8, 32):
        found = explain_bubble("gpipe", 8, parts, 1)
        yield asked(
            "gpipe",
            f"8 stages, {parts} micro-batches: how long do stages wait, in %?",
            found.value,
            "%",
            found.said,
        )
    gpt = find_decoder("7b")
    layers = gpt.layers // 4
    tokens = 4096
    whole, kept = (layers * block_activations(gpt, tokens, how) for how in ("none", "full"))
    yield asked(
        "gpipe",
        f"A stage of {layers} layers like llama-2-7b's, one micro-batch of {tokens} tokens: how many times "
        "less is kept if "
        "each layer is made again from its input?",
        whole / kept,
        "times",
        "what lets it hold all micro-batches until the backward passes begin",
    )


def _pipedream() -> Iterator[Question]:
    held = held_micro_batches("1f1b", 4, 32)
    billions = 4
    yield asked(
        "pipedream",
        "4 stages, one forward and one backward in turn, no flush. How many versions of its weights must the "
        "first "
        "stage keep, so that a micro-batch goes back through the weights it came by?",
        held,
        "versions",
        "as many as micro-batches are on their way between its forward and its backward pass",
    )
    yield asked(
        "pipedream",
        f"A model of {billions} billion fp16 parameters in 4 equal stages without a flush. How many GB of "
        "weights does the "
        "first stage keep?",
        held * 2 * billions / 4,
        "GB",
        f"a quarter of {2 * billions} GB, {held:g} versions: as much as the whole model",
    )
    yield asked(
        "pipedream",
        "4 stages, 32 micro-batches: how many times as many activations does GPipe's fullest stage hold as "
        "one of 1F1B?",
        held_micro_batches("gpipe", 4, 32) / held,
        "times",
        f"32 against {held:g}; with a flush both wait {bubble('1f1b', 4, 32):.1%}: 1F1B saves memory, not "
        "bubble",
    )


def _causvid() -> Iterator[Question]:
    chunks = 7
    yield asked(
        "causvid",
        "A teacher takes 50 steps with the prompt and without it, a student 4 without guidance. How many "
        "times fewer calls?",
        50 * 2 / 4,
        "times",
        "guidance is learnt with the rest, so its second call goes too",
    )
    yield asked(
        "causvid",
        f"21 latent frames in {chunks} chunks; a chunk sees itself and those before it. What share of all "
        "pairs of "
        "frames is attended to, in %?",
        100 * (chunks + 1) / (2 * chunks),
        "%",
        "(n+1)/2n of the square: a triangle of chunks",
    )
    yield asked(
        "causvid",
        f"If all chunks take as long, after what share of a clip's time is the first of {chunks} chunks "
        "there, in %?",
        100 / chunks,
        "%",
        "a bidirectional model shows nothing before the end",
    )


def _self_forcing() -> Iterator[Question]:
    stream = replace(SMALL.stream, window=21)
    yield asked(
        "self_forcing",
        f"1.3B: {SMALL.dit.layers} layers of width {SMALL.dit.width}, {stream.window} latent frames of "
        f"{tokens_per_frame(SMALL.dit, stream)} tokens in the cache, bf16. How many GiB?",
        window_bytes(SMALL.dit, stream, value_bytes=2) / GIB,
        "GiB",
        "2 * tokens * layers * width * 2 bytes",
    )
    steps = len(SMALL.stream.steps)
    chunk = SMALL.stream.frames_per_chunk
    past = 18
    rate = 17
    calls = steps + 1
    pictures = pixel_frames(1, chunk)
    yield asked(
        "self_forcing",
        f"A chunk is {pictures} pictures, {steps} steps and one call that writes its clean keys. How many "
        f"calls a second are {rate} pictures a second?",
        rate / pictures * calls,
        "calls",
        "the published rate on an H100; each call sees the whole window",
    )
    cached = calls * chunk
    anew = steps * (past + chunk)
    yield asked(
        "self_forcing",
        f"A chunk of {chunk} frames after {past} of past, {steps} steps. Without a cache every step runs all "
        f"{past + chunk} "
        f"frames; with it every step runs {chunk}, and one call more. How many times fewer frames go through "
        "the model?",
        anew / cached,
        "times",
        f"{anew} against {cached}",
    )


def _rolling() -> Iterator[Question]:
    seconds = 120
    fps = 16
    trained = 21
    latents = seconds * fps / TEMPORAL_STRIDE
    yield asked(
        "rolling_forcing",
        f"A model was trained on {trained} latent frames, each {TEMPORAL_STRIDE} pictures. {seconds} s at "
        f"{fps} pictures a "
        "second are how many times as many?",
        latents / trained,
        "times",
        f"{latents:.0f} latent frames: small errors have that long to add up",
    )
    dit = SMALL.dit
    stream = replace(SMALL.stream, window=9, sink=3)
    sink = window_bytes(dit, replace(stream, window=stream.sink, sink=0), value_bytes=2)
    yield asked(
        "rolling_forcing",
        f"Of a window of {stream.window} frames the first {stream.sink} stay for ever as a sink. What share "
        "of the cache is "
        "it, in %?",
        100 * sink / window_bytes(dit, stream, value_bytes=2),
        "%",
        "frames of the sink over frames of the window",
    )
    levels = len(SMALL.stream.steps)
    yield asked(
        "rolling_forcing",
        f"{levels} chunks at {levels} noise levels go through one call together, and each call finishes one. "
        "How many "
        "times fewer calls than a chunk after the other?",
        levels,
        "times",
        "as many tokens in all: calls get larger, which fills a device or a pipeline",
    )
