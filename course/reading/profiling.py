"""Questions on documents of what was reached: rooflines, utilisation, traces."""

from __future__ import annotations

from collections.abc import Iterator

from course.question import Question, asked
from millstream.planner.hardware import DEVICES, parse_fleet
from millstream.planner.language.decoders import find_decoder
from millstream.planner.language.learning import DecoderWork, step_ms

H100 = DEVICES["h100"]


def questions() -> Iterator[Question]:
    for paper in (_roofline, _utilisation, _traces):
        yield from paper()


def _roofline() -> Iterator[Question]:
    ridge = H100.bf16_tflops / H100.bandwidth_tb_s
    intensity = 10
    said = f"{H100.bf16_tflops:g} TFLOP/s and {H100.bandwidth_tb_s:g} TB/s"
    yield asked(
        "roofline",
        f"A card of {said}: from how many operations a byte on is it bound by compute?",
        ridge,
        "operations a byte",
        "peak over bandwidth, where the slope meets the roof",
    )
    yield asked(
        "roofline",
        f"A card of {said}, a kernel of {intensity} operations a byte: how many TFLOP/s at most?",
        intensity * H100.bandwidth_tb_s,
        "TFLOP/s",
        "intensity times bandwidth, as long as that is below the peak",
    )
    yield asked(
        "roofline",
        "Writing tokens multiplies each bf16 weight with one number of each text: two operations a text, two "
        "bytes. How many "
        f"texts are needed until a card of {said} computes rather than reads?",
        ridge,
        "texts",
        "as many operations a byte as texts: the ridge again; keys and values, which nobody shares, come on top",
    )


def _utilisation() -> Iterator[Question]:
    d = find_decoder("7b")
    rate = 80000
    reached = 6 * d.parameters * rate / (8 * H100.bf16_tflops * 1e12)
    yield asked(
        "palm_utilisation",
        f"llama-2-7b learns from {rate} tokens a second on 8 cards of {H100.bf16_tflops:g} TFLOP/s. Model "
        "FLOPs utilisation "
        "by six operations a parameter and token, in %?",
        100 * reached,
        "%",
        "6 P tokens a second over all peaks; attention's own operations come on top",
    )
    yield asked(
        "palm_utilisation",
        "All activations are made again. How many times the operations that count does the hardware do?",
        4 / 3,
        "times",
        "forward, forward again, twice that back: four thirds; utilisation of the model does not reward it",
    )
    work = DecoderWork(decoder=d, fleet=parse_fleet("8xH100"), context=4096, batch=2)
    step = step_ms(work)
    yield asked(
        "palm_utilisation",
        f"A step of {work.tokens} tokens a card takes {step:.0f} ms by the planner, all made again. Its "
        "utilisation of "
        f"{H100.bf16_tflops:g} TFLOP/s, in %?",
        100 * 6 * d.parameters * work.tokens / step / H100.bf16_tflops / 1e9,
        "%",
        "what is made again takes a quarter of the time and counts for nothing",
    )


def _traces() -> Iterator[Question]:
    launch = H100.rates.launch_us
    kernel = 3
    yield asked(
        "torch_profiler",
        f"A trace shows hundreds of kernels of {kernel} us each, and the host takes {launch:g} us to launch "
        "one. What share of "
        "the time is the device idle, in %?",
        100 * (1 - kernel / launch),
        "%",
        "it waits for each launch: fuse, compile or record a graph; larger batches make kernels longer",
    )
    step = 100
    sums = 30
    hidden = 24
    yield asked(
        "torch_profiler",
        f"Sums take {sums} ms of a step of {step} ms, {hidden} of them while kernels compute. How many ms "
        "would the step take "
        "if all were hidden?",
        step - (sums - hidden),
        "ms",
        "only what is not overlapped can be won",
    )
    yield asked(
        "torch_profiler",
        "A third of a step's time goes to attention, and a kernel twice as quick is there. How many times as "
        "quick is the "
        "step?",
        1 / (1 - 1 / 3 / 2),
        "times",
        "Amdahl's law: what is not made quicker stays",
    )
