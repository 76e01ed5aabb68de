"""The block stack compiles whole under every split, alike on every rank, and only while warming up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream.core.errors import CompileRefused
from millstream.core.topology import FRONT, Topology
from millstream.parallel import tensor
from millstream.parallel.compiled import (
    CompileCounters,
    check_after_warm_up,
    compile_blocks,
    explain_blocks,
    explain_breaks,
    let_compile,
    read_counters,
)
from millstream.parallel.groups import Groups, create_groups
from millstream.parallel.mesh_dit import MeshDiT
from tests.dist.calls import FOUR_HEADS, flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

ONE_LAYER = replace(FOUR_HEADS, layers=1, heads=2)
TWO_LAYERS = replace(ONE_LAYER, layers=2)


def refusal(check: object, *args: object) -> str:
    try:
        check(*args)
    except CompileRefused as refused:
        return str(refused)
    return ""


def warmed_up(share: MeshDiT, groups: Groups) -> tuple[Tensor, str, int]:
    """Flows of a compiled share, why it was refused after warm-up, and what it compiled in some more
    chunks."""
    compile_blocks(share, backend="eager")
    before = read_counters()
    found = flows(share, 2, window=3, sink=0)
    warm = read_counters()
    refused = refusal(check_after_warm_up, groups.stage, warm.since(before))
    flows(share, 2, window=3, sink=0)
    return found, refused, read_counters().since(warm).graphs


def compile_everywhere(rank: int, name: str) -> list | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    share = parallelise(dit(TWO_LAYERS if topology.pp > 1 else ONE_LAYER), topology, groups)
    eager = flows(share, 2, window=3, sink=0)
    found, *after = warmed_up(share, groups)
    if topology.pp > 1:
        share.drain()
    return [relative_error(found, eager), *after, read_counters().graphs]


@pytest.mark.parametrize("name", ["front+tp2", "front+sp2", "front+pp2"])
def test_blocks_compile_whole_and_alike_and_never_again(name: str) -> None:
    _, *ranks = run_ranks(compile_everywhere, 3, name, timeout_s=120)
    for error, refused, later, graphs in ranks:
        assert (refused, later) == ("", 0)
        assert error < 1e-6
        assert graphs > 0


def hide_a_sum(self: tensor.TensorMLP, x: Tensor) -> Tensor:
    partial = torch.nn.functional.linear(
        torch.nn.functional.gelu(self.up(x), approximate="tanh"), self.down.weight
    )
    return torch._dynamo.disable(self._group.sum)(partial, "mlp") + self.down.bias


def compiled_by(share: MeshDiT) -> CompileCounters:
    before = read_counters()
    flows(share, 1, window=3, sink=0)
    return read_counters().since(before)


def compile_badly(rank: int) -> list | None:
    topology = Topology.parse("front+tp2")
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    on_one_rank = parallelise(dit(ONE_LAYER), topology, groups)
    if rank == 1:
        compile_blocks(on_one_rank, backend="eager")
    refusals = [refusal(check_after_warm_up, groups.stage, compiled_by(on_one_rank))]
    torch._dynamo.reset()  # or the first model's graphs would serve the second
    tensor.TensorMLP.forward = hide_a_sum
    hidden = parallelise(dit(ONE_LAYER), topology, groups)
    compile_blocks(hidden, backend="eager")
    refusals.append(refusal(check_after_warm_up, groups.stage, compiled_by(hidden)))
    return refusals


def test_compiling_on_one_rank_only_or_around_a_collective_is_refused_on_all() -> None:
    _, *ranks = run_ranks(compile_badly, 3, timeout_s=120)
    for alone, hidden in ranks:
        assert "ranks of stage0 compiled differently (rank 1: " in alone
        assert "rank 2: 0 graphs and 0 breaks" in alone
        assert hidden.startswith("rank 1 compiled with 3 graph breaks")
        assert "disable" in hidden


def test_after_warm_up_graphs_are_used_and_what_none_fits_runs_as_it_is_written() -> None:
    graphs: list[int] = []
    """Which were compiled, and a second time for each run of one."""

    def traced(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(0)

        def run(*args: Tensor) -> object:
            graphs.append(1)
            return graph.forward(*args)

        return run

    model = dit(ONE_LAYER)
    warm, other = (flows(model, 2, window=window, sink=0) for window in (3, 6))
    compile_blocks(model, backend=traced)
    flows(model, 2, window=3, sink=0)
    let_compile(model, False)
    graphs.clear()
    assert relative_error(flows(model, 2, window=3, sink=0), warm) < 1e-6
    assert graphs == [1, 1, 1, 1]  # two chunks, each a call and a commit
    graphs.clear()
    assert relative_error(flows(model, 2, window=6, sink=0), other) < 1e-6
    assert 0 not in graphs
    let_compile(model, True)
    flows(model, 2, window=6, sink=0)
    assert 0 in graphs


class Breaks(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        doubled = 2 * x
        torch._dynamo.graph_break()
        return doubled + 1


def test_a_break_is_explained_by_its_line() -> None:
    (line,) = explain_breaks(Breaks(), torch.ones(2))
    assert line.startswith(f"{__file__}:")
    assert "graph_break" in line


def test_the_block_stack_has_nothing_to_explain() -> None:
    assert list(explain_blocks(dit(ONE_LAYER))) == []


def test_counters_tell_what_came_since() -> None:
    earlier = CompileCounters(graphs=2, breaks=1, reasons=("a print",))
    later = CompileCounters(graphs=5, breaks=2, reasons=("a print", "a sum"))
    assert later.since(earlier) == CompileCounters(graphs=3, breaks=1, reasons=("a sum",))
