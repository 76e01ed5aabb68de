"""Checkpoints of a learner, written by all ranks while training goes on, and read by any plan.

A checkpoint is a folder of torch's distributed checkpoints that holds whole parameters and their states, each
written by one of the ranks that have it, and a digest of every file (`digested.py`). It appears by rename
when the last rank has written: what a crash leaves behind is never taken for one.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_distributed
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from millstream.core.errors import NotKept, WeightsError
from millstream.train.parallel.digested import DigestedWriter, changed
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.states import ParameterState, Read

GO_ON = "free some space or choose another --out; the same command goes on from what is saved"
_NAMED = re.compile(r"step-(\d{8})")


class Resumable(Protocol):
    """A learner, or several."""

    @property
    def groups(self) -> TrainingGroups: ...

    def states(self) -> Iterator[ParameterState]: ...

    def load_state(self, read: Read) -> None: ...


class Remembers(Protocol):
    """State that is saved and restored beside a learner's; it is the same on every rank."""

    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


class Checkpoints:
    """Last few checkpoints of one run."""

    def __init__(
        self,
        folder: Path,
        learner: Resumable,
        *,
        keep: int = 3,
        beside: Mapping[str, Remembers] | None = None,
    ) -> None:
        """State that is `beside` the learner is saved under its name; a checkpoint that lacks it can still be
        loaded."""
        assert keep >= 1, f"{keep} checkpoints are kept"
        self.folder = folder
        self._learner = learner
        self._keep = keep
        self._beside = beside or {}
        self._writing: tuple[Path, Future[Any]] | None = None
        self._group = learner.groups.writers
        self._is_first = self._group.place == 0
        folder.mkdir(parents=True, exist_ok=True)
        if self._is_first:
            for left_behind in folder.glob(".step-*"):
                shutil.rmtree(left_behind)
        self._meet()

    @property
    def newest(self) -> Path | None:
        return max(self.all(), default=None)

    def all(self) -> list[Path]:
        return _all_of(self.folder)

    def save(self, step: int) -> None:
        """Begin to write a checkpoint of the current state. Called on every rank."""
        self.finish()
        path = self.folder / f"step-{step:08d}"
        with self._telling(path):
            writing = self._write(_partial(path))
        if writing is None:
            self._meet()
            self._appear(path)
            self._meet()
        else:
            self._writing = path, writing

    def look(self) -> None:
        """Publish the checkpoint that is being written, if it is complete. The first rank decides: its write
        ends when all ranks have written their parts."""
        if self._is_first and self._writing is not None:
            path, written = self._writing
            if written.done() and written.exception() is None:
                self._appear(path)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written; the ranks then agree that it exists."""
        if self._writing is not None:
            path, written = self._writing
            self._writing = None
            with self._telling(path):
                written.result()
            self._appear(path)
            self._meet()

    def load(self, path: Path) -> int:
        """Load a checkpoint; return the number of steps that were done. Called on every rank."""
        self._check(path)
        try:
            reader = _PatientReader(path)
            held = reader.read_metadata().state_dict_metadata
            kinds = dict[str, dict[str, TensorStorageMetadata]]()
            for key, about in held.items():
                assert isinstance(about, TensorStorageMetadata), f"{key} is no tensor"
                name, _, kind = key.rpartition(":")
                kinds.setdefault(name, {})[kind] = about
            self._learner.load_state(partial(_read, reader, kinds))
            for each in self._beside.keys() & kinds.keys():
                self._beside[each].load_state(_read(reader, kinds, each))
        except (OSError, CheckpointException, KeyError, EOFError, UnpicklingError) as error:
            wrong = (
                f"has no {error}"
                if isinstance(error, KeyError)
                else f"cannot be read ({type(error).__name__})"
            )
            raise WeightsError(
                f"{path} {wrong}: it is half written, or of another model; remove it or name another"
            ) from None
        return step_of(path)

    def _check(self, path: Path) -> None:
        """Check the digests of the files. Each rank reads its share of them; the error is raised on all
        ranks."""
        found = self._group.gather(list(changed(path, self._group.place, self._group.size)), "checkpoint")
        if names := ", ".join(name for each in found for name in each):
            raise WeightsError(
                f"{path} has changed since it was written ({names}): remove it, or name another"
            )

    def _write(self, path: Path) -> Future[Any] | None:
        """Write into a folder of that name; return None if the write is already complete."""
        state = self._mine()
        if self._group.handle is None:
            with _alone():
                save(state, storage_writer=DigestedWriter(path), no_dist=True)
            return None
        found = async_save(state, storage_writer=DigestedWriter(path), process_group=self._group.handle)
        assert isinstance(found, Future), f"an asynchronous save is waited for, got {type(found)}"
        return found

    @contextmanager
    def _telling(self, path: Path) -> Iterator[None]:
        """Raise NotKept on all ranks if one of them could not write. The incomplete folder is removed to make
        room for another try."""
        try:
            yield
        except CheckpointException as error:
            if self._is_first:
                shutil.rmtree(_partial(path), ignore_errors=True)
            why = next(iter(error.failures.values()))[0]
            raise NotKept(f"cannot write {path}: {str(why).partition(chr(10))[0]}; {GO_ON}") from None

    def _meet(self) -> None:
        self._group.gather(None, "checkpoint")

    def _mine(self) -> dict[str, Tensor]:
        """Return the tensors that this rank is to write, out of those that it holds together with others."""
        writers = self._learner.groups.batch.size * self._learner.groups.tensor.size
        groups = self._learner.groups
        me = groups.batch.place * groups.tensor.size + groups.tensor.place
        found = dict[str, Tensor]()
        for number, state in enumerate(self._learner.states()):
            if number % writers == me:
                found |= {f"{state.name}:{kind}": tensor for kind, tensor in state.tensors.items()}
        if self._is_first:
            for name, each in self._beside.items():
                found |= {f"{name}:{kind}": tensor for kind, tensor in each.state().items()}
        return found

    def _appear(self, path: Path) -> None:
        if self._is_first and _partial(path).exists():
            shutil.rmtree(path, ignore_errors=True)
            _partial(path).rename(path)
            for old in sorted(_all_of(self.folder))[: -self._keep]:
                shutil.rmtree(old)


class _PatientReader(FileSystemReader):
    """Reader that reads a checkpoint's metadata once, however many parameters are read."""

    @cached_property
    def _about(self) -> Metadata:
        return super().read_metadata()

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._about


def _read(
    reader: FileSystemReader, kinds: Mapping[str, Mapping[str, TensorStorageMetadata]], name: str
) -> dict[str, Tensor]:
    """Read one parameter's state, so that no rank holds more than one at a time."""
    state = {
        f"{name}:{kind}": torch.empty(about.size, dtype=about.properties.dtype)
        for kind, about in kinds[name].items()
    }
    with _alone():
        read_distributed(state, storage_reader=reader, no_dist=True)
    return {key.rpartition(":")[2]: tensor for key, tensor in state.items()}


@contextmanager
def _alone() -> Iterator[None]:
    """Silence the warning that torch.distributed is not used, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def _all_of(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _NAMED.fullmatch(path.name)]


def step_of(path: Path) -> int:
    found = _NAMED.fullmatch(path.name)
    if found is None:
        raise WeightsError(f"{path} is not a checkpoint: those are called step-00000100")
    return int(found[1])


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}")
