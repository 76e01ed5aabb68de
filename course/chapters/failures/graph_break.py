"""A line that a compiler cannot follow cuts its graph in two. It still runs, so nobody notices, except the
profiler's ear."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from course.reader import Reader
from millstream.commands.profile.run import hear_the_compiler


def broken(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:  # decided by data: the compiler must stop, read, and go on
        y = y + 1
    return y.relu()


def mended(x: Tensor) -> Tensor:
    y = x * 2
    return torch.where(y.sum() > 0, y + 1, y).relu()


def run(reader: Reader) -> None:
    x = torch.arange(-4.0, 5.0)
    assert torch.equal(broken(x), mended(x)), "both compute the same"
    for function in (broken, mended):
        graphs, places = _compiled(function, x)
        reader.say(f"{function.__name__:7} compiles to {graphs} graph{'s' if graphs > 1 else ''}")
        for place in places:
            reader.say(f"  tool: the profiler heard a break at {place}")
        assert bool(places) == (function is broken), f"{function.__name__}: {places}"
        assert (graphs > 1) == (function is broken), f"{function.__name__}: {graphs} graphs"
    reader.say(
        "symptom: right numbers, and less speed than hoped; every piece is launched by itself, and the host "
        "waits between"
    )
    reader.say(
        "fix: choose by torch.where, or leave the choice outside; fullgraph=True makes a break an error"
    )


def _compiled(function: object, x: Tensor) -> tuple[int, list[str]]:
    """How many graphs there were, and where they broke."""
    graphs = list[object]()

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with hear_the_compiler() as heard:
        assert callable(function)
        torch.compile(function, backend=backend)(x)
    places = [
        f"{Path(each.where.split(':')[0]).name}:{each.where.split(':')[1]}"
        for each in heard.places()
        if each.kind == "break"
    ]
    return len(graphs), places
