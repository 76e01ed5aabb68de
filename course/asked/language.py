"""Questions of language models: how large they are, what they hold, how long they read and write. The planner
answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.question import Question
from millstream.core.config import GIB, Recompute
from millstream.planner.explain import Explanation, explain_adam
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import parse_fleet
from millstream.planner.judge import MEMORY_SHARE
from millstream.planner.language.decoders import DecoderConfig, find_decoder
from millstream.planner.language.explain import explain_language, explain_speculation
from millstream.planner.language.learning import block_activations
from millstream.planner.language.serving import ServingAsk, decode_time
from millstream.planner.training import PRECISIONS, Sharding


def language_questions() -> Iterator[Question]:
    for topic in (
        _parameters,
        _experts,
        _states,
        _caches,
        _texts,
        _prefills,
        _decodes,
        _batches,
        _drafts,
        _activations,
    ):
        yield from topic()


def _ask(
    model: str, gpus: str = "H100", context: int = 4096, batch: int = 1, weights: str = "native"
) -> ServingAsk:
    return ServingAsk(
        decoder=find_decoder(model), fleet=parse_fleet(gpus), context=context, batch=batch, weights=weights
    )


def _asked(topic: str, text: str, found: Explanation, tolerance: float = 0.05) -> Question:
    return Question(
        topic=topic, text=text, answer=found.value, unit=found.unit, why=found.said, tolerance=tolerance
    )


def _shape(d: DecoderConfig) -> str:
    return f"{d.layers} layers of width {d.width}, {d.kv_heads} of {d.heads} heads with keys of their own"


def _parameters() -> Iterator[Question]:
    for model in ("7b", "8b", "30b", "70b", "405b", "mixtral-8x7b"):
        d = find_decoder(model)
        experts = f"{d.experts} gated MLPs" if d.experts > 1 else "a gated MLP"
        text = (
            f"{d.name}: {_shape(d)}, {experts} of {d.ffn} a layer, {d.vocabulary} words, embedding and "
            "head apart. "
        )
        yield _asked(
            "decoders", f"{text}How many billion parameters?", explain_language("parameters", _ask(model))
        )


def _experts() -> Iterator[Question]:
    d = find_decoder("mixtral-8x7b")
    share = d.active_parameters / d.parameters
    yield Question(
        topic="experts",
        text=f"{d.name} has {d.parameters / 1e9:.3g} billion parameters; of its {d.experts} MLPs a token "
        f"takes {d.active}, "
        f"each {d.layers} times {d.expert_parameters / 1e6:.0f} million. What share of the parameters does a "
        "token use, in %?",
        answer=100 * share,
        unit="%",
        why=f"all but {d.experts - d.active} MLPs of each layer: {d.active_parameters / 1e9:.4g} billion; "
        "memory holds all",
    )
    for tokens in (2, 8, 32):
        chosen = d.experts * (1 - (1 - d.active / d.experts) ** tokens)
        yield Question(
            topic="experts",
            text=f"A layer has {d.experts} experts, a token takes {d.active}, all equally often. How many of "
            "them does "
            f"a call over {tokens} tokens read, on average?",
            answer=chosen,
            unit="experts",
            why="each is missed by a token with probability 1 - k/E: E (1 - (1 - k/E)^tokens); few tokens "
            "read them all",
        )


def _states() -> Iterator[Question]:
    cases = (
        ("7b", "fp32", 0, 1),
        ("7b", "bf16", 0, 1),
        ("13b", "mixed-fp32-gradients", 1, 8),
        ("70b", "8-bit", 3, 64),
    )
    for model, state, zero, shards in (*cases, ("30b", "mixed", 3, 64), ("405b", "mixed", 3, 1024)):
        d = find_decoder(model)
        (weight, gradient, optimizer) = PRECISIONS[state]
        sharding = Sharding(
            zero=zero, shards=shards, weight_bytes=weight, gradient_bytes=gradient, optimizer_bytes=optimizer
        )
        held = f"weights in {weight} bytes, gradients in {gradient}, Adam in {optimizer:.3g}"
        yield _asked(
            "state",
            f"{d.name}, {d.parameters / 1e9:.4g} billion parameters, {held}, ZeRO-{zero} over {shards}. "
            "How many GB does one rank hold?",
            explain_adam(d.parameters, sharding),
        )


def _caches() -> Iterator[Question]:
    for model, context in (
        ("7b", 4096),
        ("13b", 2048),
        ("8b", 8192),
        ("70b", 32768),
        ("405b", 131072),
        ("mixtral-8x7b", 32768),
    ):
        d = find_decoder(model)
        yield _asked(
            "kv",
            f"{d.name}: {_shape(d)}, bf16. How many GiB are keys and values of {context} tokens?",
            explain_language("kv", _ask(model, context=context)),
        )
    d = find_decoder("70b")
    alone = replace(d, kv_heads=d.heads)
    yield Question(
        topic="kv",
        text=f"{d.name} with keys of its own for every one of its {d.heads} heads instead of {d.kv_heads}: "
        f"{32768} tokens take "
        "how many GiB?",
        answer=alone.kv_bytes(32768) / GIB,
        unit="GiB",
        why=f"{d.heads // d.kv_heads} times {d.kv_bytes(32768) / GIB:g}: grouped heads are what makes long "
        "contexts fit",
    )


def _texts() -> Iterator[Question]:
    for model, gpus, context in (
        ("8b", "H100", 8192),
        ("70b", "4xH100", 8192),
        ("70b", "8xH200", 32768),
        ("7b", "RTX4090", 4096),
    ):
        ask = _ask(model, gpus, context)
        yield _asked(
            "texts",
            f"{ask.decoder.name} in bf16 on {gpus} of {ask.fleet.device.memory_gib:g} GiB, "
            f"{1 - MEMORY_SHARE:.0%} left free, "
            f"{PROCESS_BYTES / GIB:g} GiB for the process. How many texts of {context} tokens fit at "
            f"{ask.decoder.kv_bytes(1) / 1024:g} KiB a token?",
            explain_language("texts", ask),
        )


def _prefills() -> Iterator[Question]:
    for model, gpus, context in (("7b", "A100", 2048), ("8b", "H100", 8192), ("70b", "8xH100", 8192)):
        ask = _ask(model, gpus, context)
        rates = ask.fleet.device.rates
        yield _asked(
            "prefill",
            f"{ask.decoder.name} reads a prompt of {context} tokens on {gpus}; products reach "
            f"{rates.matmul_tflops:.0f} "
            f"TFLOP/s, attention {rates.attention_tflops:.0f}. How many ms at least?",
            explain_language("prefill", ask),
            tolerance=0.15,
        )


def _decodes() -> Iterator[Question]:
    for model, gpus, weights in (
        ("7b", "A100", "native"),
        ("70b", "2xH200", "native"),
        ("8b", "RTX4090", "q4_k"),
    ):
        ask = _ask(model, gpus, 1024, weights=weights)
        rates = ask.fleet.device.rates
        packed = "bf16" if weights == "native" else weights
        yield _asked(
            "decode",
            f"{ask.decoder.name} in {packed} writes one token of one text of {ask.context} tokens on {gpus}, "
            "which reads "
            f"{rates.bandwidth_tb_s:.3g} TB/s each. How many ms at least?",
            explain_language("decode", ask),
            tolerance=0.15,
        )


def _batches() -> Iterator[Question]:
    one = decode_time(_ask("8b", context=1024)).total
    for batch in (8, 64):
        ask = _ask("8b", context=1024, batch=batch)
        time = decode_time(ask)
        yield Question(
            topic="batching",
            text=f"{ask.decoder.name} on one H100: a step for one text of {ask.context} tokens takes "
            f"{one:.3g} ms, reading "
            f"{ask.decoder.multiplied_parameters * 2e-9:.3g} GB of weights; a text's keys and values are "
            f"{ask.decoder.kv_bytes(ask.context) / 1e9:.3g} GB. How many times as many tokens a second do "
            f"{batch} texts bring?",
            answer=batch * one / time.total,
            unit="times",
            why=explain_language("decode", ask).said,
            tolerance=0.1,
        )


def _drafts() -> Iterator[Question]:
    for accepted, ahead in ((0.7, 3), (0.8, 4), (0.8, 16)):
        ask = _ask("70b", "4xH100", 1024)
        draft = find_decoder("8b")
        found = explain_speculation(ask, draft, accepted, ahead)
        cost = found.filled.rpartition("* ")[2].rstrip(")")
        yield _asked(
            "drafts",
            f"{draft.name} proposes {ahead} tokens to {ask.decoder.name}; its token costs {float(cost):.3g} "
            "of a call, "
            f"{accepted:.0%} are accepted. How many times as quick?",
            found,
        )


def _activations() -> Iterator[Question]:
    cases: tuple[tuple[str, Recompute], ...] = (("7b", "none"), ("7b", "full"), ("70b", "none"))
    tokens = 4096
    for model, recompute in cases:
        d = find_decoder(model)
        kept = "nothing is made again" if recompute == "none" else "all is made again from each block's input"
        yield Question(
            topic="activations",
            text=f"{d.name}: {_shape(d)}, a gated MLP of {d.ffn}; attention is fused, {kept}. "
            f"How many GiB do all blocks keep of {tokens} tokens in bf16?",
            answer=d.layers * block_activations(d, tokens, recompute) / GIB,
            unit="GiB",
            why="two bytes of each: four of the width (residuals, norms), queries, what attention answers, "
            "keys, values, three "
            "of the hidden layer; or one of the width",
            tolerance=0.1,
        )
