"""Words that a CUDA graph sets to zero, by a kernel instead of a memset.

cuDNN's attention and many products hand out their tiles by counting in a word of memory, which is set to zero
before each call: four times a layer. As a node of a graph a memset is 5 us between two kernels; a kernel in
its place is 1.6, to the same bits (docs/decisions/013). Needs the driver's Python interface, which comes with
torch for CUDA 13; without it graphs stay as they were recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

from millstream.ops.backend import has_triton

_WORD_BYTES = 4
_FIRST_VERSION = 13
"""First version of the interface whose functions return the edges of a graph with their data."""


@cache
def find_driver() -> ModuleType | None:
    try:
        from cuda import bindings
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver if int(bindings.__version__.partition(".")[0]) >= _FIRST_VERSION else None


class MemsetReplacer:
    """Changes graphs of one device."""

    def __init__(self, driver: Any, make_node: Callable[[int], Any]) -> None:
        """`make_node(address)` gives the parameters of a kernel node that sets the word there to zero."""
        self._driver = driver
        self._make_node = make_node

    @staticmethod
    def on(device: torch.device) -> MemsetReplacer | None:
        """Return a replacer for this device; None where graphs cannot be changed."""
        driver = find_driver()
        if driver is None or not has_triton():
            return None
        from millstream.ops.kernels.graph_memsets import built_zero_word

        kernel = built_zero_word(device)

        def make_node(address: int) -> Any:
            node = driver.CUDA_KERNEL_NODE_PARAMS()
            node.func = driver.CUfunction(kernel.function)
            node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
            node.blockDimX = 32
            node.kernelParams = ((address, 0, 0), (ctypes.c_void_p,) * 3)  # Triton's own two come behind
            return node

        return MemsetReplacer(driver, make_node)

    def change(self, graph: Any) -> int:
        """Replace the memsets of a graph that is not instantiated yet. Return how many there were."""
        memsets = [
            node for node in self._listed(self._driver.cuGraphGetNodes, graph)[0] if self._is_memset(node)
        ]
        return sum(self._replaced(graph, node) for node in memsets)

    def _replaced(self, graph: Any, node: Any) -> bool:
        driver = self._driver
        memset = self._asked(driver.cuGraphMemsetNodeGetParams, node)[0]
        if memset.value != 0 or memset.elementSize * memset.width * memset.height != _WORD_BYTES:
            return False
        before, _ = self._listed(driver.cuGraphNodeGetDependencies, node)
        after, meaning = self._listed(driver.cuGraphNodeGetDependentNodes, node)
        self._asked(driver.cuGraphDestroyNode, node)
        (kernel,) = self._asked(
            driver.cuGraphAddKernelNode, graph, before, len(before), self._make_node(int(memset.dst))
        )
        self._asked(driver.cuGraphAddDependencies, graph, [kernel] * len(after), after, meaning, len(after))
        return True

    def _is_memset(self, node: Any) -> bool:
        kind = self._asked(self._driver.cuGraphNodeGetType, node)[0]
        return bool(kind == self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET)

    def _listed(self, ask: Callable[..., Any], of: Any) -> tuple[list[Any], list[Any]]:
        """Nodes, and what their edges mean where it is about edges. Asked twice: first how many there are."""
        *_, count = self._asked(ask, of)
        nodes, *meaning, _ = self._asked(ask, of, count)
        return list(nodes or ()), list(meaning[0] or ()) if meaning else []

    def _asked(self, ask: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        code, *answer = ask(*arguments)
        assert code == self._driver.CUresult.CUDA_SUCCESS, f"{ask.__name__} answered {code}"
        return tuple(answer)
