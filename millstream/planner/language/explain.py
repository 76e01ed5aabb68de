"""One number of a language model with its formula and the formula filled in; the sibling of
`planner/explain.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from millstream.core.chunk_work import attention_flops
from millstream.core.config import GIB
from millstream.core.errors import ConfigError
from millstream.planner.communication import all_reduce
from millstream.planner.explain import Explanation
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import Link
from millstream.planner.judge import MEMORY_SHARE
from millstream.planner.language.decoders import DecoderConfig
from millstream.planner.language.serving import (
    ServingAsk,
    decode_time,
    free_bytes,
    prefill_time,
    read_bytes,
    speculative_gain,
    texts_that_fit,
)


def explain_language(name: str, ask: ServingAsk) -> Explanation:
    if name not in LANGUAGE:
        known = ", ".join((*LANGUAGE, "adam", "speculation", "all-reduce"))
        raise ConfigError(f"{name!r} is not explained of a language model; known: {known}")
    found = LANGUAGE[name](ask)
    if name in ("weights", "prefill", "decode", "texts") and free_bytes(ask) < 0:
        held = ask.decoder.parameters * ask.weight_bytes / ask.fleet.count / 1e9
        has = ask.fleet.device.memory_bytes / 1e9
        said = f"but its weights do not fit: {held:.4g} GB where a device has {has:.3g}; name more devices"
        return replace(found, why=f"{found.why}; {said}")
    return found


def explain_sum(num_bytes: float, ranks: int, link: Link) -> Explanation:
    """An all-reduce of so many bytes, by the quicker of ring and tree."""
    if not (0 < num_bytes < math.inf and ranks >= 2 and link.alpha_us >= 0 and 0 < link.beta_gb_s < math.inf):
        raise ConfigError(
            "an all-reduce needs --bytes above 0, 2 or more --shards, --latency of 0 or more, --bandwidth "
            "above 0"
        )
    steps = math.ceil(math.log2(ranks))
    value = all_reduce(num_bytes, ranks, link)
    a = f"{link.alpha_us:g} / 1000"
    b = f"{num_bytes:.10g} / {link.beta_gb_s:g} / 1e6"
    ring = f"{2 * (ranks - 1)} * {a} + {2 * (ranks - 1)}/{ranks} * {b}"
    tree = f"{2 * steps} * {a} + 2 * {b}"
    most = "bytes" if 2 * (ranks - 1) / ranks * num_bytes / link.beta_gb_s / 1e6 > value / 2 else "latency"
    return Explanation(
        name="all-reduce",
        formula="min(2(n-1) alpha + 2(n-1)/n bytes / beta, 2 ceil(log2 n) alpha + 2 bytes / beta)",
        filled=f"min({ring}, {tree})",
        value=value,
        unit="ms",
        why=f"a ring or a tree, whichever is quicker, by {link.name}; mostly {most} here; bytes do not "
        "shrink with more ranks",
    )


def explain_speculation(ask: ServingAsk, draft: DecoderConfig, accepted: float, ahead: int) -> Explanation:
    cost = decode_time(_drafting(ask, draft)).total / decode_time(ask).total
    tokens = " + ".join(f"{accepted:g}**{place}" for place in range(ahead + 1))
    return Explanation(
        name="speculation",
        formula="(1 + a + a^2 + ... + a^k) / (1 + k c)",
        filled=f"({tokens}) / (1 + {ahead} * {cost:.6g})",
        value=speculative_gain(accepted, ahead, cost),
        unit="times as quick",
        why=f"a token of {draft.name} costs {cost:.3g} of a call of {ask.decoder.name}; a proposal counts if "
        "all before it did",
    )


def _drafting(ask: ServingAsk, draft: DecoderConfig) -> ServingAsk:
    """On one of the devices: a draft is small, and sums between devices would cost more than they save."""
    return replace(ask, decoder=draft, fleet=replace(ask.fleet, count=1))


def _parameters(ask: ServingAsk) -> Explanation:
    d = ask.decoder
    cached = d.kv_heads * d.head_width
    gates = 3 if d.gated else 2
    experts = f"{d.experts} * " if d.experts > 1 else ""
    router = f" + {d.width} * {d.experts}" if d.experts > 1 else ""
    block = (
        f"(2 * {d.width}**2 + 2 * {d.width} * {cached} + {experts}{gates} * {d.width} * {d.ffn}{router} "
        f"+ 2 * {d.width})"
    )
    active = f"; a token uses {d.active_parameters / 1e9:.4g} billion of them" if d.experts > 1 else ""
    return Explanation(
        name="parameters",
        formula="layers (q and o + k and v + MLPs + norms) + embedding and head",
        filled=f"({d.layers} * {block} + {1 if d.tied else 2} * {d.vocabulary} * {d.width} + {d.width}) / "
        "1e9",
        value=d.parameters / 1e9,
        unit="billion",
        why=f"{d.kv_heads} of {d.heads} heads have keys and values of their own{active}",
    )


def _weights(ask: ServingAsk) -> Explanation:
    n = ask.fleet.count
    return Explanation(
        name="weights",
        formula="parameters * bytes / devices",
        filled=f"{ask.decoder.parameters} * {ask.weight_bytes:g} / {n} / 1e9",
        value=ask.decoder.parameters * ask.weight_bytes / n / 1e9,
        unit="GB",
        why="of each device; all experts are held, whichever a token takes",
    )


def _kv(ask: ServingAsk) -> Explanation:
    d = ask.decoder
    each = f"2 * {d.layers} * {d.kv_heads} * {d.head_width} * {ask.kv_value_bytes}"
    return Explanation(
        name="kv",
        formula="2 * layers * heads of keys * head width * bytes * context * texts",
        filled=f"{each} * {ask.context} * {ask.batch} / 2**30",
        value=ask.batch * d.kv_bytes(ask.context, ask.kv_value_bytes) / GIB,
        unit="GiB",
        why=f"{d.kv_bytes(1, ask.kv_value_bytes) / 1024:g} KiB a token on all devices together; weights do "
        "not grow, this does",
    )


def _prefill(ask: ServingAsk) -> Explanation:
    d = ask.decoder
    rates = ask.fleet.device.rates
    n = ask.fleet.count
    time = prefill_time(ask)
    tokens = ask.batch * ask.context
    attention = d.layers * attention_flops(tokens, ask.context, d.width) // 2
    computed = f"2 * {d.multiplied_parameters} * {tokens} / {n} / {rates.matmul_tflops:.6g}"
    computed = f"({computed} + {attention} / {n} / {rates.attention_tflops:.6g}) / 1e9"
    read = f"{d.read_parameters(tokens):.8g} * {ask.weight_bytes:g} / {n} / {rates.bandwidth_tb_s:.6g} / 1e9"
    return Explanation(
        name="prefill",
        formula="max(flops / rate, bytes of weights / bandwidth) + sums between devices",
        filled=f"max({computed}, {read}) + {time.talked:.6g}",
        value=time.total,
        unit="ms",
        why=f"bound by {time.bound}: {tokens} tokens share one reading of the weights",
    )


def _decode(ask: ServingAsk) -> Explanation:
    time = decode_time(ask)
    rates = ask.fleet.device.rates
    filled = (
        f"max({time.computed:.6g}, {read_bytes(ask):.8g} / {rates.bandwidth_tb_s:.6g} / 1e9) + "
        f"{time.talked:.6g}"
    )
    rate = 1e3 * ask.batch / time.total
    return Explanation(
        name="decode",
        formula="max(flops / rate, bytes of weights and keys and values / bandwidth) + sums between devices",
        filled=filled,
        value=time.total,
        unit="ms",
        why=f"bound by {time.bound}; {rate:.4g} tokens a second of {ask.batch} texts, {1e3 / time.total:.4g} "
        "of each, at most",
    )


def _texts(ask: ServingAsk) -> Explanation:
    each = ask.decoder.kv_bytes(ask.context, ask.kv_value_bytes) * ask.kv_share
    return Explanation(
        name="texts",
        formula="(memory - weights) / keys and values of a text, on one device",
        filled=f"max(0, {int(free_bytes(ask))} // {each:.10g})",
        value=texts_that_fit(ask),
        unit="texts",
        why=f"of {ask.context} tokens each; {1 - MEMORY_SHARE:.0%} of a device is left free, "
        f"{PROCESS_BYTES / GIB:g} GiB are the process's",
    )


LANGUAGE: dict[str, Callable[[ServingAsk], Explanation]] = {
    "parameters": _parameters,
    "weights": _weights,
    "kv": _kv,
    "prefill": _prefill,
    "decode": _decode,
    "texts": _texts,
}
