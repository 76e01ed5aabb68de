"""One process, then several that share the rows: bytes and seconds of each, next to what the planner says of
them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from course.chapters.data_parallel.small_model import make_model, make_rows
from course.checking import load_answer
from course.lab import answer_in, fitted_link, held_bytes, quickest_s
from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.planner.communication import all_gather

LAYERS = 4
WIDTH = 256
ROWS = 512


def run(reader: Reader, world: int = 2, answer: str = "") -> None:
    """`answer`: your file, instead of our solution."""
    must_divide(ROWS, "rows", world)
    held = held_bytes(make_model(LAYERS, WIDTH).parameters())
    guess = reader.predict(
        f"a model of {held / 1e6:.2f} MB on {world} processes that share the rows. How many MB do all hold?"
    )
    answers = on_ranks(shared, world, answer_in(__file__, answer))
    everywhere = sum(bytes_held for bytes_held, *_ in answers)
    reader.reveal(guess, everywhere / 1e6, by="counted: everybody has the whole model", tolerance=0.02)
    assert everywhere == world * held, f"{world} copies of {held} bytes hold {everywhere}"
    reader.say(f"rows of a process: before {ROWS}, after {ROWS // world}")
    alone, together, gather = answers[0][1:]
    assert min(alone, together) > 0, f"{alone} and {together} s"
    reader.measured(f"speed before: {ROWS / alone:9.0f} rows a second in one process ({1e3 * alone:.1f} ms)")
    reader.measured(
        f"speed after:  {ROWS / together:9.0f} rows a second in {world} processes ({1e3 * together:.1f} ms)"
    )
    reader.measured(
        f"the planner: {1e3 * alone / world:.1f} ms for the rows, {gather:.1f} ms to gather what came out"
    )
    reader.say(
        "more processes than cores, or cores that others use, show here: the planner counts on a device for each"
    )


def shared(rank: int, world: int, path: Path) -> tuple[int, float, float, float]:
    """Bytes held, seconds of all rows here and of rows shared out, and milliseconds that gathering should
    take."""
    mine = load_answer(path)
    model = make_model(LAYERS, WIDTH)
    rows = make_rows(ROWS, WIDTH)
    mine.same_start(model)
    link = fitted_link(rank, world)
    with torch.no_grad():
        alone = quickest_s(lambda: model(rows)) if rank == 0 else 0.0  # by itself, while nobody else computes
        dist.barrier()
        found = mine.shared_forward(model, rows, rank, world)
        assert torch.allclose(found, model(rows), atol=1e-5), "the outputs of all rows"
        together = quickest_s(lambda: mine.shared_forward(model, rows, rank, world))
    return held_bytes(model.parameters()), alone, together, all_gather(held_bytes([found]), world, link)
