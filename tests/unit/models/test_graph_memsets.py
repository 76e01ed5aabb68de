"""Memsets of a graph that become kernels, on a driver that only keeps books; the real one is `tests/gpu`'s
business."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.models.fast.graph_memsets import MemsetReplacer

OK = 0
BAD = 1


@dataclass
class Books:
    """A driver with one graph: what each node does, and its edges in the order they came, with what they
    mean."""

    nodes: dict[int, Any] = field(default_factory=dict)
    edges: list[tuple[int, int, str]] = field(default_factory=list)
    refuses: str = ""
    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET="memset")

    def cuGraphGetNodes(self, graph: str, count: int = 0) -> tuple[Any, ...]:
        return OK, list(self.nodes)[:count], len(self.nodes)

    def cuGraphNodeGetType(self, node: int) -> tuple[Any, ...]:
        return OK, "memset" if isinstance(self.nodes[node], SimpleNamespace) else "kernel"

    def cuGraphMemsetNodeGetParams(self, node: int) -> tuple[Any, ...]:
        return OK, self.nodes[node]

    def cuGraphNodeGetDependencies(self, node: int, count: int = 0) -> tuple[Any, ...]:
        found = [(a, meaning) for a, b, meaning in self.edges if b == node]
        return OK, [a for a, _ in found][:count], [meaning for _, meaning in found][:count], len(found)

    def cuGraphNodeGetDependentNodes(self, node: int, count: int = 0) -> tuple[Any, ...]:
        found = [(b, meaning) for a, b, meaning in self.edges if a == node]
        return OK, [b for b, _ in found][:count], [meaning for _, meaning in found][:count], len(found)

    def cuGraphDestroyNode(self, node: int) -> tuple[Any, ...]:
        del self.nodes[node]
        self.edges = [edge for edge in self.edges if node not in edge[:2]]
        return (OK,)

    def cuGraphAddKernelNode(self, graph: str, before: list[int], count: int, does: str) -> tuple[Any, ...]:
        if self.refuses:
            return BAD, None
        node = max(self.nodes) + 1
        self.nodes[node] = does
        self.edges += [(each, node, "") for each in before[:count]]
        return OK, node

    def cuGraphAddDependencies(
        self, graph: str, before: list[int], after: list[int], meaning: list[str], count: int
    ) -> tuple[Any, ...]:
        self.edges += list(zip(before[:count], after[:count], meaning[:count], strict=True))
        return (OK,)

    def order(self) -> set[tuple[Any, Any, str]]:
        return {(self.nodes[a], self.nodes[b], meaning) for a, b, meaning in self.edges}


def memset(address: int, *, value: int = 0, width: int = 4, size: int = 1) -> SimpleNamespace:
    return SimpleNamespace(dst=address, value=value, width=width, elementSize=size, height=1)


def changed(books: Books) -> int:
    return MemsetReplacer(books, lambda address: f"zero {address}").change("graph")


def test_a_word_is_set_to_zero_in_the_same_place_of_the_graph() -> None:
    books = Books(
        nodes={
            1: "norm",
            2: memset(80),
            3: "product",
            4: memset(96, width=1, size=4),
            5: "attention",
            6: "out",
        }
    )
    books.edges = [(1, 2, ""), (2, 3, "early"), (2, 6, ""), (3, 4, ""), (4, 5, ""), (5, 6, "")]
    assert changed(books) == 2
    assert sorted(map(str, books.nodes.values())) == [
        "attention",
        "norm",
        "out",
        "product",
        "zero 80",
        "zero 96",
    ]
    assert books.order() == {
        ("norm", "zero 80", ""),
        ("zero 80", "product", "early"),
        ("zero 80", "out", ""),
        ("product", "zero 96", ""),
        ("zero 96", "attention", ""),
        ("attention", "out", ""),
    }


@pytest.mark.parametrize("other", [memset(8, value=1), memset(8, width=400), memset(8, width=2)])
def test_other_memsets_stay(other: SimpleNamespace) -> None:
    books = Books(nodes={1: other, 2: "product"}, edges=[(1, 2, "")])
    assert changed(books) == 0
    assert books.nodes[1] is other
    assert books.edges == [(1, 2, "")]


def test_a_memset_at_the_beginning_or_the_end_has_no_edges_there() -> None:
    books = Books(nodes={1: memset(8), 2: "product", 3: memset(16)}, edges=[(1, 2, ""), (2, 3, "")])
    assert changed(books) == 2
    assert books.order() == {("zero 8", "product", ""), ("product", "zero 16", "")}


def test_what_the_driver_refuses_is_said() -> None:
    books = Books(nodes={1: memset(8)}, refuses="kernels")
    with pytest.raises(AssertionError, match="cuGraphAddKernelNode answered 1"):
        changed(books)
