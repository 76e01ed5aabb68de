"""Checkpoint files, opened lazily: names, shapes and dtypes first, then one tensor at a time.

Knows containers (safetensors, torch archives) and how trainers wrap a state dict; not what the names mean.
Nothing in a file is ever executed.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from millstream.core.errors import WeightsError

Shape = tuple[int, ...]

SAFETENSORS = ".safetensors"
SUFFIXES = (SAFETENSORS, ".pt", ".pth", ".bin", ".ckpt")
"""All but the first are torch archives."""

_WRAPPERS = ("state_dict", "model", "module", "generator_lora")
_LEADING = re.compile(r"^(?:(?:base_model|model|module|generator|diffusion_model|transformer)\.)+")
_ANYWHERE = re.compile(r"\b(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    shape: Shape
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Shard:
    """One open file. Its tensors may be views of the file: copy what must outlive it."""

    path: Path
    infos: Mapping[str, TensorInfo]
    _fetch: Callable[[str], Tensor]
    chosen: str = ""
    """Name of the generator that was taken, as the file has it; empty where the file has no two."""

    def read(self, name: str) -> Tensor:
        with _clear_errors(self.path):
            return self._fetch(name)


@contextmanager
def open_shard(path: Path, *, prefer_ema: bool = True) -> Iterator[Shard]:
    """Names come without the prefixes that trainers and wrappers put in front of them."""
    with ExitStack() as stack:
        with _clear_errors(path):
            shard = (
                _open_safetensors(path, stack)
                if path.suffix == SAFETENSORS
                else _open_torch(path, prefer_ema)
            )
        yield shard


class LastShard:
    """Reads from one file after the other; the last one stays open."""

    def __init__(self, *, prefer_ema: bool = True) -> None:
        self._stack = ExitStack()
        self._prefer_ema = prefer_ema
        self._shard: Shard | None = None

    def read(self, path: Path, name: str) -> Tensor:
        """Maybe a view of the file, good until another is read from."""
        if self._shard is None or self._shard.path != path:
            self._stack.close()
            self._shard = self._stack.enter_context(open_shard(path, prefer_ema=self._prefer_ema))
        return self._shard.read(name)


def find_shards(path: Path) -> list[Path]:
    """The files that together are the checkpoint at `path`: itself, or what its folder's index or names
    say."""
    if not path.exists():
        raise WeightsError(f"{path} does not exist; check the path")
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise WeightsError(
                f"{path} is no checkpoint by its name; expected {', '.join(SUFFIXES)} or a folder"
            )
        return [path]
    if indices := sorted(
        path.glob("*.index.json"), key=lambda index: (SAFETENSORS not in index.name, len(index.name))
    ):
        return _indexed(indices[0])
    for suffix in SUFFIXES:
        if files := sorted(path.glob(f"*{suffix}")):
            return files
    raise WeightsError(f"{path} holds no weights; expected files ending in {', '.join(SUFFIXES)}")


def _indexed(index: Path) -> list[Path]:
    with _clear_errors(index):
        names = sorted(set(msgspec.json.decode(index.read_bytes())["weight_map"].values()))
        files = [index.parent / name for name in names]
    if absent := [file.name for file in files if not file.exists()]:
        raise WeightsError(
            f"{index} names files that are not there: {', '.join(absent)}; download them again"
        )
    return files


def _open_safetensors(path: Path, stack: ExitStack) -> Shard:
    handle = stack.enter_context(safe_open(path, framework="pt"))
    raw = _cleaned(handle.keys(), path)
    slices = {name: handle.get_slice(stored) for name, stored in raw.items()}
    infos = {
        name: TensorInfo(tuple(view.get_shape()), _DTYPES[view.get_dtype()]) for name, view in slices.items()
    }
    return Shard(path, infos, lambda name: handle.get_tensor(raw[name]))


def _open_torch(path: Path, prefer_ema: bool) -> Shard:
    """Only archives in the zip format can be mapped; older ones are read whole."""
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    generators = _in_order(prefer_ema)
    tensors = _unwrapped(loaded, generators)
    if not tensors:
        raise WeightsError(f"{path} holds no tensors; give a checkpoint's state dict")
    raw = _cleaned(tensors, path)
    infos = {
        name: TensorInfo(tuple(tensors[stored].shape), tensors[stored].dtype) for name, stored in raw.items()
    }
    has_both = isinstance(loaded, dict) and all(_holds(loaded, name) for name in generators)
    return Shard(path, infos, lambda name: tensors[raw[name]], generators[0] if has_both else "")


def _in_order(prefer_ema: bool) -> tuple[str, str]:
    """Names of the averaged and the plain generator, the wanted one first."""
    return ("generator_ema", "generator") if prefer_ema else ("generator", "generator_ema")


def _holds(loaded: dict[str, object], name: str) -> bool:
    value = loaded.get(name)
    return isinstance(value, dict) and bool(value)


def _unwrapped(loaded: object, generators: tuple[str, str]) -> dict[str, Tensor]:
    """The innermost state dict. Numbers called alpha are kept: a LoRA may store them bare."""
    while isinstance(loaded, dict):
        inner = (loaded.get(key) for key in (*generators, *_WRAPPERS))
        found = next((value for value in inner if isinstance(value, dict) and value), None)
        if found is None:
            break
        loaded = found
    items = loaded.items() if isinstance(loaded, dict) else ()
    kept = {
        str(name): value for name, value in items if isinstance(value, Tensor) or str(name).endswith(".alpha")
    }
    return {name: torch.as_tensor(value) for name, value in kept.items()}


def _cleaned(names: Iterable[str], path: Path) -> dict[str, str]:
    """Each bare name and what the file calls it."""
    table: dict[str, str] = {}
    for stored in names:
        name = _LEADING.sub("", _ANYWHERE.sub("", stored))
        if name in table:
            raise WeightsError(f"{path} holds {name} twice, as {table[name]} and {stored}; keep one of them")
        table[name] = stored
    return table


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Around library calls that parse `path`, and nothing else: what a damaged file makes them raise is
    theirs to choose."""
    try:
        yield
    except WeightsError:
        raise
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; check the path") from error
    except PermissionError as error:
        raise WeightsError(f"{path} cannot be read; check its permissions") from error
    except Exception as error:
        if path.suffix in SUFFIXES[1:]:
            said = (
                "is damaged or holds code besides tensors, which is never run; download it again or get "
                "it as safetensors"
            )
        else:
            said = "is damaged or not what its name says; download it again"
        raise WeightsError(f"{path} {said}") from error
