"""Files of a checkpoint with a digest beside each, so that changes by a disk or a copy are found before the
files are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from millstream.core.files import file_digest

SUFFIX = ".digest"


class DigestedWriter(FileSystemWriter):
    """Writer with which every rank digests what it has written, while training goes on."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        for name in {result.storage_data.relative_path for result in written.wait()}:
            _digest(Path(self.path) / name)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        _digest(Path(self.path) / ".metadata")


def changed(folder: Path, place: int, parts: int) -> Iterator[str]:
    """Yield the names of files that are not as they were written, out of part `place` of `parts` of them.
    Older checkpoints have no digests."""
    for digest in sorted(folder.glob(f"*{SUFFIX}"))[place::parts]:
        file = digest.with_suffix("")
        if not file.is_file() or file_digest(file) != digest.read_text(errors="replace"):
            yield file.name


def _digest(file: Path) -> None:
    file.with_name(file.name + SUFFIX).write_text(file_digest(file))
