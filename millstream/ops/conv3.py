"""A 3x3x3 convolution of our own, where it beats the library's: Hopper GPUs, bf16, 96 or 192 channels in and
out.

CUDA C++ (`cuda/conv3.cu`), built on first use if there is a compiler, then kept: some seconds, once per
machine. Without a compiler or on other GPUs there is none, and the library's convolution serves.
Shapes: T frames, Y and X rows and columns, I inputs, O outputs.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

PAST = 2
"""Frames of the past that a causal convolution over three frames sees."""
TAPS = 27
"""Taps of a 3x3x3 convolution."""
SOURCE = Path(__file__).parent / "cuda" / "conv3.cu"
SLICES = {96: 32, 192: 16}
"""Channels that the kernel takes at a time, by how many there are."""
_TARGET = "-gencode=arch=compute_90a,code=sm_90a"
_log = logging.getLogger(__name__)


class OwnConvolution:
    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        pointer = ctypes.c_void_p
        number = ctypes.c_int
        self._kernels = {channels: getattr(loaded, f"conv3_{channels}") for channels in SLICES}
        for kernel in self._kernels.values():
            kernel.argtypes = [pointer, pointer, pointer, number, number, number, pointer]
            kernel.restype = number

    def pack(self, weight_OITYX: Tensor) -> Tensor | None:
        """A weight as the kernel reads it, or None if it cannot."""
        outer, inputs, *taps = weight_OITYX.shape
        if (
            taps != [3, 3, 3]
            or outer != inputs
            or inputs not in SLICES
            or weight_OITYX.dtype != torch.bfloat16
        ):
            return None
        return packed(weight_OITYX)

    def __call__(self, canvas: Tensor, packed_weight: Tensor) -> Tensor:
        """[T, Y, X, C] of a canvas [T + 2, Y + 2, X + 2, C]: the past in front, a rim of zeros around."""
        assert canvas.is_contiguous(), f"the kernel reads a dense canvas, got strides {canvas.stride()}"
        assert canvas.dtype == torch.bfloat16, f"the kernel multiplies bfloat16, got {canvas.dtype}"
        frames, rows, columns, channels = canvas.shape
        out = torch.empty(
            frames - 2, rows - 2, columns - 2, channels, dtype=canvas.dtype, device=canvas.device
        )
        stream = torch.cuda.current_stream(canvas.device).cuda_stream
        code = self._kernels[channels](
            canvas.data_ptr(),
            packed_weight.data_ptr(),
            out.data_ptr(),
            frames - 2,
            rows - 2,
            columns - 2,
            stream,
        )
        assert code == 0, f"the convolution of {tuple(canvas.shape)} failed to start: code {code}"
        return out


def packed(weight_OITYX: Tensor) -> Tensor:
    """[3 frames, slices, 3 rows, 3 columns, SLICE / 8, O, 8]: each slice's nine taps in one run."""
    outer, inputs = weight_OITYX.shape[:2]
    slice_ = SLICES[inputs]
    parted = weight_OITYX.contiguous().view(outer, inputs // slice_, slice_ // 8, 8, 3, 3, 3)
    return parted.permute(4, 1, 5, 6, 2, 0, 3).contiguous()


@cache
def find_convolution() -> OwnConvolution | None:
    """Return our convolution, built if need be; None where it cannot run, which is logged once with the
    reason."""
    reason = _why_not()
    if reason:
        _log.info("the library's convolution serves: %s", reason)
        return None
    try:
        return OwnConvolution(build())
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        _log.warning("the library's convolution serves: ours could not be built: %s", said[-500:])
        return None


def build() -> Path:
    """Build the library, unless the cache has it, and return its path."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise FileNotFoundError("nvcc is not on the path")
    header = "".join(wgmma_header(columns) for columns in SLICES)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.blake2b(f"{SOURCE.read_text()}{header}{version}".encode(), digest_size=8).hexdigest()
    folder = cache_folder() / f"conv3-{key}"
    library = folder / "conv3.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wgmma.h").write_text(f"template <int N> struct Wgmma;\n{header}")
    fresh = folder / f"conv3.{os.getpid()}.so"
    command = [
        compiler,
        "-O3",
        _TARGET,
        "-shared",
        "-Xcompiler",
        "-fPIC",
        f"-I{folder}",
        "-o",
        str(fresh),
        str(SOURCE),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    fresh.rename(library)  # whole or not at all, however many processes build at once
    return library


def cache_folder() -> Path:
    """`$MILLSTREAM_CACHE`, or `~/.cache/millstream`."""
    return Path(os.environ.get("MILLSTREAM_CACHE") or Path.home() / ".cache" / "millstream")


def wgmma_header(columns: int) -> str:
    """One warpgroup's 64 x `columns` sums: as many operands as registers, which is why this is written by a
    program."""
    registers = columns // 2
    operands = ",".join(f"%{i}" for i in range(registers))
    bound = ",".join(f'"+f"(d[{i}])' for i in range(registers))
    a, b, keep = (f"%{registers + i}" for i in range(3))
    return f"""template <> struct Wgmma<{columns}> {{
  static __device__ __forceinline__ void add(float (&d)[{registers}], uint64_t a, uint64_t b, int keep) {{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, {keep}, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
                 "{{{operands}}}, {a}, {b}, p, 1, 1, 0, 0;}}"
                 : {bound} : "l"(a), "l"(b), "r"(keep));
  }}
}};
"""


def _why_not() -> str:
    if not torch.cuda.is_available():
        return "there is no GPU"
    if torch.cuda.get_device_capability()[0] != 9:
        return f"ours is for Hopper, this is {torch.cuda.get_device_name()}"
    return "" if shutil.which("nvcc") else "ours is built with nvcc, which is not on the path"
