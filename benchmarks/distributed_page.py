"""The tables of docs/distributed.md, from the results that are there.

python -m benchmarks.distributed_page
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import peer_sums, shares, tiles
from benchmarks.pages import is_there, report_of, row, write_tables
from benchmarks.report import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"
SHOWN = (
    "anchor off, send first, d_in 2, d_out 2",
    "anchor off, decode first, d_in 1, d_out 1",
    "anchor decoded, decode first, d_in 2, d_out 2",
    "anchor decoded, send first, d_in 2, d_out 2",
)
"""Settings of `bench overlap` that the page shows."""
COUNTED = ("controls_lost", "chunks_shown_twice", "chunks_skipped", "chunks_out_of_order")


def overlap() -> Iterator[str]:
    runs = {run["setting"]: run for run in report_of("overlap")["measured"]["runs"]}
    yield "| setting | score | period, ms | front, ms | mesh, ms | it is |"
    yield "|---|---|---|---|---|---|"
    for setting in SHOWN:
        run = runs[setting]
        times = [f"{run[key]:.1f}" for key in ("period_ms", "stage0_ms", "stage1_ms")]
        yield row([setting, f"{run['score']:.2f}", *times, run["signature"]])


def overlap_real() -> Iterator[str]:
    report = report_of("overlap_real")
    where = report["hardware"].get("gpu") or f"{report['hardware']['cores']} cores"
    yield ""
    yield "| setting | score | period, ms | front, ms | mesh, ms | the mesh idles, ms |"
    yield "|---|---|---|---|---|---|"
    for run in report["measured"]["runs"]:
        times = [f"{run[key]:.1f}" for key in ("period_ms", "stage0_ms", "stage1_ms", "idle_ms")]
        yield row([run["setting"], f"{run['score']:.2f}", *times])
    yield ""
    asked = report["configuration"]
    yield f"`{asked['engine']['model']}` on `{asked['topology']}`, one {where}, commit `{report['commit']}`."


def stream_batch() -> Iterator[str]:
    found = report_of("stream_batch")["measured"]
    yield row(["chunks under way", *(f"{schedule}: latents off by, pictures" for schedule in found)])
    yield "|---" * (1 + len(found)) + "|"
    names = {"unrelated": "for comparison, another seed of the same prompt"}
    for key in next(iter(found.values())):
        yield row(
            [
                names.get(key, key.removeprefix("depth ")),
                *(_off_by(found[schedule][key]) for schedule in found),
            ]
        )


def _off_by(found: dict[str, float]) -> str:
    error = found["latents_relative_error"]
    return f"{error:.0%}, {found['psnr_db']:.1f} dB" if error else "exact"


def stream_batch_pipeline() -> Iterator[str]:
    found = report_of("stream_batch_pipeline")["measured"]["ms_a_chunk"]
    depths = list(found["local"])
    yield row(["chunks under way", *(depth.removeprefix("depth ") for depth in depths)])
    yield "|---" * (1 + len(depths)) + "|"
    for topology in ("local", "front+pp2"):
        yield row([f"`{topology}`", *(f"{found[topology][depth]:.0f}" for depth in depths)])
    yield row(
        [
            "a stage that never waits",
            *(f"{found['a stage that never waits']['any depth']:.0f}" for _ in depths),
        ]
    )


def breaks() -> Iterator[str]:
    kills, rank_kills, envelope = (report_of(name) for name in ("kills", "rank_kills", "envelope"))
    yield "| what | command | found | goal | on |"
    yield "|---|---|---|---|---|"
    gone = f"ranks left behind by {kills['configuration']['kills']} killed fronts are gone after, at most"
    yield _line(
        gone,
        kills,
        f"{kills['measured']['ranks_gone_s']['longest']:g} s",
        f"{kills['measured']['goal_s']:g} s",
    )
    back = rank_kills["measured"]
    asked = rank_kills["configuration"]
    what = (
        f"from a kill to the next chunk, {back['kills']} kills, {back['of_them_during_a_recovery']} of them "
        "during a recovery, "
        f"{asked['viewers']} viewers on `{asked['topology']}`"
    )
    said = ", ".join(f"{name} {seconds:g} s" for name, seconds in back["recovered_s"].items())
    yield _line(what, rank_kills, said, f"p95 {back['goal_p95_s']:g} s")
    counted = {name: back[name] for name in COUNTED if name in back}
    yield _line(
        "the same kills",
        rank_kills,
        ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counted.items()),
        "0",
    )
    if is_there("long_mesh"):
        long = report_of("long_mesh")
        error = long["measured"]["relative_error_at_the_end"]
        grown = max(long["measured"]["resident_growth"].values())
        asked = long["configuration"]
        what = f"chunk {asked['chunks']} of a steered stream on `{asked['topology']}`, against one process"
        yield _line(what, long, f"off by {error:.1e}, memory grew by {max(0.0, grown):.1%}", "1e-5, 1%")
    over = envelope["measured"]
    said = (
        f"{over['over_the_bare_transfer_ms']:.1f} ms; with empty tensors {over['beyond_the_bytes_ms']:.2f} ms"
    )
    goals = f"{over['goal_over_ms']:g} ms; {over['goal_beyond_ms']:g} ms"
    yield _line(
        "an envelope and its result, 14B sizes, over the bare transfer of their bytes", envelope, said, goals
    )


def _line(what: str, report: dict[str, Any], found: str, goal: str) -> str:
    used = report["configuration"].get("device", "cpu")
    hardware = report["hardware"]
    where = hardware["gpu"] if used == "cuda" else f"{hardware['cores']} cores"
    name = report["benchmark"]
    module = f"benchmarks.{name}" if (RESULTS.parent / f"{name}.py").exists() else f"tests.soak.{name}"
    return row([what, f"`python -m {module}`", found, goal, where])


def tables_there() -> dict[str, Callable[[], Iterator[str]]]:
    """By the name of their marks, those whose results were measured."""
    found = {
        "overlap": overlap,
        "stream_batch": stream_batch,
        "stream_batch_pipeline": stream_batch_pipeline,
        "breaks": breaks,
    }
    if is_there("overlap_real"):  # measured where there is a GPU, like those below
        found["overlap_real"] = overlap_real
    measured = [each for each in (shares, peer_sums, tiles) if is_there(_name(each))]
    return found | {each.__name__: partial(_tables_of, each) for each in measured}


def _tables_of(benchmark: ModuleType) -> Iterator[str]:
    yield from benchmark.tables(report_of(_name(benchmark)))


def _name(benchmark: ModuleType) -> str:
    return benchmark.__name__.removeprefix("benchmarks.")


TABLES = tables_there()

if __name__ == "__main__":
    write_tables(PAGE, TABLES)
