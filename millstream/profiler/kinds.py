"""What an event of a trace is, from its category and its name. Knows the words of Kineto, CUDA, NCCL and gloo, no numbers."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Kind(IntEnum):
    OTHER = 0
    KERNEL = 1
    """Work on the device."""
    COLLECTIVE = 2
    """A collective between ranks, where it runs: a kernel of NCCL's, or a thread of gloo's."""
    EXCHANGE = 3
    """The same between two: send, receive."""
    COPY = 4
    """Between host and device."""
    OP = 5
    """An operator, as the host sees it."""
    LAUNCH = 6
    GRAPH = 7
    """The launch of many kernels at once."""
    SYNC = 8
    """The host waits for the device."""
    ALLOCATION = 9
    """The host asks the driver for memory, or gives it back."""
    NOTE = 10
    """What somebody wrote into the trace."""
    DATA = 11
    ENCODE = 12
    DECODE = 13
    COMPILE = 14
    OVERHEAD = 15
    """The profiler's own."""
    DEVICE_NOTE = 16
    """A note as the device saw it: from its first kernel to its last."""


DEVICE_KINDS = (Kind.KERNEL, Kind.COLLECTIVE, Kind.EXCHANGE, Kind.COPY)

_COLLECTIVE = re.compile(
    r"^(nccl|rccl|gloo:|c10d::|oneccl|mpi:)|ncclDevKernel|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_kernel|"
    r"symm_mem|nvshmem",
    re.IGNORECASE,
)
_EXCHANGE = re.compile(r"send_?recv|gloo:(send|recv)|[:_](send|recv)_?\b", re.IGNORECASE)
_SYNC = re.compile(
    r"Synchronize|^(cuda|hip)Memcpy(2D|3D|DtoH|HtoD|DtoD|WithStream|ToSymbol|FromSymbol)?(_v\d+\w*|_ptsz)?$|^cuMemcpy(DtoH|HtoD)_?v?\d*$"
)
"""Copies that block wait for all that was queued before them."""
_ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|MallocAsync|FreeAsync)|^cuMem(Map|Unmap|Create|Release|Alloc|Free)"
)
_GRAPH = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"Launch|MemcpyAsync|MemsetAsync|Memcpy\w*Async")
_DATA = re.compile(r"data_?loader|load_?batch|next_?batch|read_?frames|prefetch|^millstream\.input\b", re.IGNORECASE)
_ENCODE = re.compile(
    r"encode_?video|video_?encode|\bmux|h\.?26[45]|x26[45]|nvenc|libvpx|encode_?frame|^millstream\.write\b", re.IGNORECASE
)
_DECODE = re.compile(r"\bvae[._ :]*(stream_?)?decode|decode_?latents|latents?_?decode|^millstream\.decode\b", re.IGNORECASE)
_COMPILE = re.compile(r"\(dynamo_timed\)$|^entire_frame_compile|inductor_?compile|^Inductor|triton_?compile", re.IGNORECASE)


@lru_cache(maxsize=65536)
def kind_of(category: str, name: str) -> Kind:
    match category.lower():
        case "kernel":
            return _talk(name) or Kind.KERNEL
        case "gpu_memset":
            return Kind.KERNEL
        case "gpu_memcpy":
            return Kind.COPY
        case "cuda_runtime" | "cuda_driver" | "hip_runtime" | "runtime" | "driver":
            return _call(name)
        case "cpu_op" | "operator":
            return _remark(name) if _remark(name) is not Kind.NOTE else Kind.OP
        case "gpu_user_annotation":
            return Kind.DEVICE_NOTE
        case "user_annotation":
            return (_talk(name) if name.startswith(("gloo:", "nccl:")) else None) or _remark(name)
        case "overhead":
            return Kind.OVERHEAD
        case "" | "user" | "function":
            return _remark(name)
    return Kind.OTHER


def is_decode(name: str) -> bool:
    """Whether a note says that latents become pictures."""
    return _DECODE.search(name) is not None


def _talk(name: str) -> Kind | None:
    if _EXCHANGE.search(name) and _COLLECTIVE.search(name):
        return Kind.EXCHANGE
    return Kind.COLLECTIVE if _COLLECTIVE.search(name) else None


def _call(name: str) -> Kind:
    """A call of the driver's or the runtime's."""
    if _GRAPH.search(name):
        return Kind.GRAPH
    if _SYNC.search(name):
        return Kind.SYNC
    if _ALLOCATION.search(name):
        return Kind.ALLOCATION
    return Kind.LAUNCH if _LAUNCH.search(name) else Kind.OTHER


def _remark(name: str) -> Kind:
    for pattern, kind in ((_DECODE, Kind.DECODE), (_ENCODE, Kind.ENCODE), (_DATA, Kind.DATA), (_COMPILE, Kind.COMPILE)):
        if pattern.search(name):
            return kind
    return Kind.NOTE


_FAMILIES = (
    ("attention", re.compile(r"attention|flash|fmha|sdpa|cudnn.*mha", re.IGNORECASE)),
    ("convolution", re.compile(r"conv|implicit_gemm|wgrad|dgrad", re.IGNORECASE)),
    ("product", re.compile(r"gemm|matmul|cutlass|cublas|::mm|addmm|bmm|linear|xmma|nvjet|scaled_mm", re.IGNORECASE)),
)


@lru_cache(maxsize=65536)
def family_of(name: str) -> str:
    """product, attention, convolution, or between products: everything that only walks over values."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), "between products")


WORKING = re.compile(r"::|^(cpp|graph|triton|extern)_")
"""How operators and compiled kernels are called on a processor; what is called otherwise is bookkeeping."""
VIEWS = re.compile(
    r"^c10d::|^aten::(as_strided|view|_?reshape_alias|reshape|_unsafe_view|transpose|t|permute|expand|unsqueeze|squeeze|select|slice|"
    r"narrow|unflatten|flatten|detach_?|alias|empty\w*|resize_|resolve_conj|resolve_neg|result_type|to|contiguous|chunk|split\w*|"
    r"unbind|item|is_nonzero|lift_fresh|set_|numpy_T|movedim|expand_as|view_as|type_as|size|stride|numel|dim|matmul|linear|"
    r"_?convolution|conv[123]d|slow_conv3d|thnn_conv2d)$"
)
"""Operators that move no values themselves: they look at a tensor anew, reserve room, or call those that work."""
