"""Files as a whole: what is in one, and several that appear together at the end or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType


def file_digest(path: Path) -> str:
    """Fingerprint of a file's bytes, read in pieces."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


class Staging:
    """Hands out temporary files beside their final places. Leaving without an error renames them, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, Path] = {}
        self._made: list[Path] = []

    def __enter__(self) -> Staging:
        return self

    def path(self, name: str) -> Path:
        """Where to write what will be called `name`."""
        final = self.folder / name
        self._make(final.parent)
        self._files[final] = final.with_name(f".{final.name}.{os.getpid()}.tmp")
        return self._files[final]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                for final, temporary in self._files.items():
                    temporary.replace(final)
        finally:
            for temporary in self._files.values():
                temporary.unlink(missing_ok=True)
            for folder in reversed(self._made):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def _make(self, folder: Path) -> None:
        """One level at a time, so that what was made can be taken back."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir()
            self._made.append(folder)
