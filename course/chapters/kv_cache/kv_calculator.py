"""Size of a cache: for language models by their published shapes, for our video models by the
planner."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.planner.language.decoders import DecoderConfig, find_decoder
from millstream.planner.memory import window_bytes

SHOWN = tuple(find_decoder(name) for name in ("7b", "8b", "70b", "405b"))


def run(reader: Reader, tokens: int = 32768, gpus: int = 8, memory: float = 139.8) -> None:
    if tokens < 1 or gpus < 1 or memory <= 0:
        raise CourseError(
            f"--tokens, --gpus and --memory must be positive, got {tokens}, {gpus} and {memory:g}"
        )
    large = SHOWN[2]
    guess = reader.predict(
        f"{large.layers} layers, {large.kv_heads} heads of keys, {large.head_width} wide, bf16, {tokens} "
        "tokens. GiB of cache?"
    )
    reader.reveal(
        guess,
        large.kv_bytes(tokens) / GIB,
        by="2 (keys and values) * layers * heads * width * 2 bytes * tokens",
        tolerance=0.05,
    )
    reader.say(f"{'':32}{'KiB a token':>12}{'GiB a text':>12}{'texts in ' + str(gpus) + ' GPUs':>18}")
    for shape in SHOWN:
        left = gpus * memory * GIB - 2 * shape.parameters
        texts = max(0, int(left / shape.kv_bytes(tokens)))
        reader.say(
            f"{label(shape):32}{shape.kv_bytes(1) / 1024:12.0f}{shape.kv_bytes(tokens) / GIB:12.2f}{texts:18}"
        )
    few = SHOWN[1].kv_bytes(1)
    many = SHOWN[0].kv_bytes(1)
    assert many == 4 * few, "8 heads of keys in place of 32"
    reader.say("ours, whose window does not grow:")
    for name in ("brook", "wan2.1-t2v-1.3b", "wan2.1-t2v-14b"):
        spec = find_model(name)
        count = spec.stream.window * tokens_per_frame(spec.dit, spec.stream)
        size = window_bytes(spec.dit, spec.stream, value_bytes=2) / GIB
        reader.say(
            f"{name:32}{size * GIB / count / 1024:12.0f}{size:12.2f} GiB for {count} tokens, however long it "
            "streams"
        )


def label(shape: DecoderConfig) -> str:
    return f"{shape.name}, {shape.kv_heads} heads of keys"
