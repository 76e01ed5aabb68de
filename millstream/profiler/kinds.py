"""Kind of an event, from its category and its name. Knows the names of Kineto, CUDA, NCCL and gloo, and no
numbers."""

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
    """A message between two ranks, where it runs: send, receive."""
    COPY = 4
    """A copy between host and device."""
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
    """An annotation that a program wrote into the trace."""
    DATA = 11
    ENCODE = 12
    DECODE = 13
    COMPILE = 14
    OVERHEAD = 15
    """Overhead of the profiler itself."""
    DEVICE_NOTE = 16
    """A note as the device saw it: from its first kernel to its last."""
    PYTHON = 17
    """A frame of a Python stack."""


DEVICE_KINDS = (Kind.KERNEL, Kind.COLLECTIVE, Kind.EXCHANGE, Kind.COPY)

_COLLECTIVE = re.compile(
    r"^(nccl|rccl|gloo:|c10d::|oneccl|mpi:)|ncclDevKernel|"
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_kernel|"
    r"symm_mem|nvshmem|cross_device_reduce|(inter|intra)node(_ll)?::|"
    r"deep_ep|mscclpp|multimem_|(one|two)_?shot_",
    re.IGNORECASE,
)
_EXCHANGE = re.compile(r"send_?recv|gloo:(send|recv)|[:_](send|recv)_?\b", re.IGNORECASE)
_SYNC = re.compile(
    r"Synchronize|^(cuda|hip)Memcpy(2D|3D|DtoH|HtoD|DtoD|WithStream|ToSymbol|FromSymbol)?(_v\d+\w*|_ptsz)?$|"
    r"^cuMemcpy(DtoH|HtoD)_?v?\d*$"
)
"""Copies that block wait for all that was queued before them."""
_ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|MallocAsync|FreeAsync)|"
    r"^cuMem(Map|Unmap|Create|Release|Alloc|HostAlloc|Free)"
)
_GRAPH = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"Launch|^runFunction|MemcpyAsync|MemsetAsync|Memcpy\w*Async")
_DATA = re.compile(
    r"data_?loader|load_?batch|next_?batch|read_?frames|prefetch|^millstream\.input\b", re.IGNORECASE
)
PREPARES = re.compile(
    r"pre_?process|image_processing|feature_extract|tokeniz|/decord/|torchcodec|/av/", re.IGNORECASE
)
"""Python code that prepares input; it is the host's own work, unlike waiting for a data loader."""
_ENCODE = re.compile(
    r"encode_?video|video_?encode|\bmux|h\.?26[45]|x26[45]|nvenc|libvpx|encode_?frame|^millstream\.write\b",
    re.IGNORECASE,
)
_DECODE = re.compile(
    r"\bvae[._ :]*(stream_?)?decode|decode_?latents|latents?_?decode|^millstream\.decode\b", re.IGNORECASE
)
_COMPILE = re.compile(
    r"\(dynamo_timed\)$|^entire_frame_compile|inductor_?compile|^Inductor|triton_?compile", re.IGNORECASE
)


_KERNELS = {"kernel", "mtia_ccp_events", "hpu_op", "concurrent_kernel"}
_CALLS = {
    f"{maker}_{part}"
    for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1")
    for part in ("runtime", "driver")
}
_WAITS_ON_DEVICE = re.compile(r"^event_wait$|^Wait Value|^Context Sync|^Event Wait")
"""A stream that waits for another is not work."""
FOREIGN = frozenset({"mtia_ccp_events", "hpu_op", "privateuse1_runtime", "xpu_runtime", "mtia_runtime"})
"""Categories of devices whose calls and kernels are not known by name here."""


@lru_cache(maxsize=65536)
def kind_of(category: str, name: str) -> Kind:
    category = category.lower()
    if category in _KERNELS:
        return Kind.OTHER if _WAITS_ON_DEVICE.search(name) else _talk(name) or Kind.KERNEL
    if category in _CALLS:
        return _call(name)
    match category:
        case "gpu_memset" | "memset":
            return Kind.KERNEL
        case "gpu_memcpy" | "memcpy":
            return Kind.COPY
        case "runtime" | "driver":
            return _call(name)
        case "cpu_op" | "operator":
            return _remark(name) if _remark(name) is not Kind.NOTE else Kind.OP
        case "gpu_user_annotation":
            return Kind.DEVICE_NOTE
        case "user_annotation":
            return (_talk(name) if name.startswith(("gloo:", "nccl:")) else None) or _remark(name)
        case "overhead":
            return Kind.OVERHEAD
        case "python_function":
            return Kind.DATA if PREPARES.search(name) else Kind.PYTHON
        case "" | "user" | "function":
            return _remark(name)
    return Kind.OTHER


def is_decode(name: str) -> bool:
    """Return whether a note is about decoding latents to frames."""
    return _DECODE.search(name) is not None


def _talk(name: str) -> Kind | None:
    if _EXCHANGE.search(name) and _COLLECTIVE.search(name):
        return Kind.EXCHANGE
    return Kind.COLLECTIVE if _COLLECTIVE.search(name) else None


def _call(name: str) -> Kind:
    """Return the kind of a call to the driver or the runtime."""
    if _GRAPH.search(name):
        return Kind.GRAPH
    if _SYNC.search(name):
        return Kind.SYNC
    if _ALLOCATION.search(name):
        return Kind.ALLOCATION
    return Kind.LAUNCH if _LAUNCH.search(name) else Kind.OTHER


def _remark(name: str) -> Kind:
    for pattern, kind in (
        (_DECODE, Kind.DECODE),
        (_ENCODE, Kind.ENCODE),
        (_DATA, Kind.DATA),
        (_COMPILE, Kind.COMPILE),
    ):
        if pattern.search(name):
            return kind
    return Kind.NOTE


BETWEEN = "between products"
COMPUTING = frozenset(("product", "attention", "convolution"))
"""Families that do an operator's arithmetic; others beside them bring its values into another order or
type."""
_FAMILIES = (
    (
        "cache write",
        re.compile(
            r"reshape_and_cache|kv_?cache_?(update|write|store)|(store|set|write)_?kv|concat_and_cache", re.I
        ),
    ),
    (
        "attention",
        re.compile(r"attention|flash|fmha|sdpa|cudnn.*mha|attn_(fwd|bwd)|_attn_|\bmla_|sageattn", re.I),
    ),
    (BETWEEN, re.compile(r"triton_(poi|red|per)_|elementwise|batchnorm|bn_fw|norm_?(fwd|bwd|kernel)", re.I)),
    ("convolution", re.compile(r"conv(?!ert)|implicit_gemm|wgrad|dgrad|miopen.*(fwd|bwd|wrw)|igemm", re.I)),
    (
        "product",
        re.compile(
            r"gemm|matmul|cutlass|cublas|::mm\b|addmm|bmm|linear|xmma|nvjet|scaled_mm|^Cijk_|"
            r"_mm_kernel|triton_tem_",
            re.I,
        ),
    ),
    (
        "cast or copy",
        re.compile(r"to_copy|direct_copy|_cast|cast_|convert|quant(?!.*norm)|transpose|memset", re.I),
    ),
)
FAMILIES = tuple(sorted({BETWEEN, *(family for family, _ in _FAMILIES)}))


@lru_cache(maxsize=65536)
def family_of(name: str) -> str:
    """Return a kernel's family by its name: product, attention, convolution, a write into a cache, a cast or
    copy, or between products: whatever only walks over values. The name of a fused walk lists the operators
    that were fused, so walks are matched before what such a list could hold."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), BETWEEN)


WORKING = re.compile(r"::|^(cpp|graph|triton|extern)_")
"""Names of operators and compiled kernels on a processor; anything else is bookkeeping."""
VIEWS = re.compile(
    r"^c10d::|^aten::(as_strided|view|_?reshape_alias|reshape|_unsafe_view|transpose|t|permute|expand|"
    r"unsqueeze|squeeze|select|slice|"
    r"narrow|unflatten|flatten|detach_?|alias|empty\w*|resize_|resolve_conj|resolve_neg|result_type|to|"
    r"contiguous|chunk|split\w*|"
    r"unbind|item|is_nonzero|lift_fresh|set_|numpy_T|movedim|expand_as|view_as|type_as|size|stride|numel|dim|"
    r"matmul|linear|"
    r"_?convolution|conv[123]d|slow_conv3d|thnn_conv2d)$"
)
"""Operators that move no values themselves: they look at a tensor anew, reserve room, or call those that
work."""
