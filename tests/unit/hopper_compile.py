"""Compiles every hand-written kernel to Hopper machine code, which needs no GPU. Run by
`test_kernels_compile.py`.

A process of its own: the tests' interprets kernels, and what is interpreted cannot be compiled. What differs
between the two is looked for: see `refuse_forgetful_loops`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.code_generator import CodeGenerator

from millstream.ops.kernels import graph_memsets, low_attention, noise, pictures, ring_write, rows
from millstream.ops.kernels import quantise_kv as packed
from millstream.ops.low_attention import HEAD_WIDTHS

HOPPER = GPUTarget("cuda", 90, 32)
ROW = dict(WIDTH=384, BLOCK=512)
"""Narrower than a model's: what a thread does for each of its elements is compiled once for every one of
them."""
PICTURE = dict(CHANNELS=96, BLOCK=128, RUN=8)


def refuse_forgetful_loops() -> None:
    """Triton carries a name from turn to turn of a loop if one look at the body leaves another value in it. A
    name that begins as a second one's value and is assigned that second one looks unchanged, and changes are
    lost; an interpreter's are not."""
    find = CodeGenerator._find_carries

    def found(
        self: CodeGenerator,
        node: Any,
        before: dict[str, Any],
        ignore: frozenset[str] | set[str] = frozenset(),
    ) -> Any:
        carried = find(self, node, before, set(ignore))
        names = [each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Name)]
        forgotten = {
            each.id for each in names if isinstance(each.ctx, ast.Store)
        } & before.keys() - ignore - set(carried[0])
        assert not forgotten, (
            f"{self.function_name}: a loop forgets what it assigns to {', '.join(sorted(forgotten))}"
        )
        return carried

    CodeGenerator._find_carries = found


def build(kernel: Any, types: str | Sequence[Any], constants: dict[str, Any], warps: int = 4) -> None:
    """`types` are those of the arguments that are no constants, in order; a star is a pointer,
    and several in one are a tuple."""
    given = iter(types.split() if isinstance(types, str) else types)
    signature = {name: "constexpr" if name in constants else next(given) for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    built = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=fixed),
        target=HOPPER,
        options=dict(num_warps=warps),
    )
    print(kernel.__name__, len(built.asm["cubin"]))


def low_attention_kernels(head: int) -> None:
    shape = dict(N=12, H=head, TILE=128)
    rooms = "*bf16 *bf16 *fp32 *fp32 *i64 *i8 *fp8e4nv *fp32 *fp32 i32 i32 i32 i32 i32 i32"
    build(packed._pack_runs, rooms, shape, warps=8)
    tiles = f"tensordesc<i8[128,{head}]> tensordesc<fp8e4nv[{head},128]>"
    attended = f"*i8 *fp32 {tiles} *fp32 *fp32 *fp32 *bf16 i32 i32 i32 fp32"
    build(low_attention._attend_packed, attended, shape | dict(BLOCK=64, LIFT=8))


def main() -> None:
    refuse_forgetful_loops()
    for packs, q, scales in ((False, "*bf16", "*bf16"), (True, "*i8", "*fp32")):
        ring = f"*bf16 *bf16 *bf16 *fp32 *fp32 *i64 {q} {scales} *bf16 *bf16 *fp32 i32 i32 i32 fp32"
        build(ring_write._write_ring, ring, ROW | dict(HEAD=128, PACKS=packs, GIVEN=packs))
    build(
        ring_write._turn_heads,
        "*bf16 *bf16 *bf16 *fp32 *fp32 *bf16 i32 fp32",
        ROW | dict(PART=ROW["WIDTH"] // 2, HEAD=128),
    )
    build(ring_write._put_heads, "*bf16 *i64 *bf16 *bf16", ROW)
    build(ring_write._mean_squares, "*bf16 *fp32 i32 fp32", ROW)
    for head in HEAD_WIDTHS:
        low_attention_kernels(head)
    for fp8, out, scales in ((False, "*bf16", "*bf16"), (True, "*fp8e4nv", "*fp32")):
        build(rows._join_heads, f"*bf16 {out} {scales} i32", ROW | dict(PART=ROW["WIDTH"] // 2, FP8=fp8))
        for on in (False, True):
            parts, copies = (4, 2) if on else (1, 1)
            build(
                rows._add_norm,
                [
                    "*bf16",
                    ("*bf16",) * parts,
                    *["*bf16"] * 4,
                    (out,) * copies,
                    (scales,) * copies,
                    *["i32"] * 4,
                    "fp32",
                ],
                ROW | dict(PARTS=parts, GATED=on, MODULATED=not on, LATER=on, COPIES=copies, FP8=fp8),
            )
            build(
                rows._finish_attention,
                f"*bf16 *fp32 fp32 {out} {scales} i32 i32",
                ROW | dict(HEAD=128, PARTS=5 if on else 1, SUMS=on, FP8=fp8),
            )
    for gated in (False, True):
        parts = 2 if gated else 1
        build(
            rows._add_gated,
            ["*bf16", ("*bf16",) * parts, "*bf16", *["i32"] * 4],
            ROW | dict(PARTS=parts, GATED=gated),
        )
    build(graph_memsets._zero_word, "*i32", {}, warps=1)
    build(rows._norm_query, "*bf16 *bf16 *bf16 fp32", ROW)
    build(rows._gelu_rows, "*bf16 *fp8e4nv *fp32", dict(WIDTH=1120, FIRST=1024, REST=128), warps=8)
    for on in (False, True):
        choices = dict(
            PHASES=on,
            ADDS=not on,
            NORMS=on,
            KEEPS=not on,
            PAINTS=True,
            LEAVES=on,
            AFTER=2,
            PAD=int(on),
            ROOT=9.8,
        )
        build(pictures._merge_onto, f"{'*bf16 ' * 7}i32 i32 i32 i32 i32 i32", PICTURE | choices)
    build(pictures._split_frames, "*bf16 *bf16 *bf16 i32 i32", PICTURE)
    build(pictures._sum_taps, "*bf16 *bf16 *bf16 i32 i32 i32 i32", dict(CHANNELS=3, RUN=128))
    build(pictures._to_pictures, "*bf16 *u8 i32 i32 i32 i32 i32 i32 i32", dict(COLOURS=3, RUN=1024))
    for seed, seeded in (("i64", False), ("*i64", True)):
        build(noise._gaussian, f"*fp32 i32 i32 i32 i32 {seed}", dict(RUN=128, SEEDED_ROWS=seeded))


if __name__ == "__main__":
    main()
