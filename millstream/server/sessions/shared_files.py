"""Files that several servers share, so that a session outlives any of them: in a folder that all of them see,
or at an address of fsspec's.

A file is there whole or not at all. A folder that has gone is not made anew: another server would not see it,
and whatever was mounted there may come back. Knows no sessions; `file_store.py` and `keeper.py` beside it say
what lies here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from millstream.core.errors import ConfigError, NotKept


@dataclass(frozen=True, slots=True)
class SharedFiles:
    files: Any
    """File system of fsspec's."""
    root: str
    home: str
    """Root of all shared files; `root` is that, or a folder in it."""

    @classmethod
    def at(cls, address: str) -> SharedFiles:
        """Raises where nothing can be written there."""
        try:
            files, root = fsspec.core.url_to_fs(address)
            root = root.rstrip("/")
            shared = cls(files, root, root)
            files.makedirs(root, exist_ok=True)
            shared.write("tried", b"x" * 4096)
            shared.remove("tried")
        except (OSError, ValueError, ImportError, NotKept) as error:
            raise ConfigError(
                f"cannot share files at {address}: {error}; choose a folder or address that can be written"
            ) from None
        return shared

    @classmethod
    def in_folder(cls, folder: Path) -> SharedFiles:
        """A folder of this server's own, which is there."""
        return cls(LocalFileSystem(), str(folder), str(folder))

    def under(self, folder: str) -> SharedFiles:
        return SharedFiles(self.files, f"{self.root}/{folder}", self.home)

    def put(self, source: Path, place: str) -> None:
        with self._whole(place) as draft:
            self.files.put_file(str(source), draft)

    def write(self, place: str, data: bytes) -> None:
        with self._whole(place) as draft:
            self.files.pipe_file(draft, data)

    def fetch(self, place: str, target: Path) -> bool:
        """Fetch a file to `target`; return whether it was there. A file already at `target` is replaced."""
        draft = target.with_name(f".{secrets.token_hex(8)}.fetched")
        try:
            self.files.get_file(f"{self.root}/{place}", str(draft))
        except FileNotFoundError:
            self._check_there(place)
            return False
        except OSError as error:
            raise NotKept(f"cannot read {place}: {error}; the storage that servers share is gone") from None
        draft.replace(target)
        return True

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return the files of a folder by their names, in order; none where there is no folder."""
        try:
            found = {
                path.rpartition("/")[2]: data
                for path, data in self.files.cat(f"{self.root}/{folder}/*").items()
            }
        except FileNotFoundError:
            self._check_there(folder)
            return {}
        except OSError as error:
            raise NotKept(f"cannot read {folder}: {error}; the storage that servers share is gone") from None
        return {name: found[name] for name in sorted(found) if not name.endswith(".draft")}

    def names(self, folder: str) -> list[str]:
        with suppress(OSError):
            return [path.rpartition("/")[2] for path in self.files.ls(f"{self.root}/{folder}", detail=False)]
        return []

    def remove(self, place: str) -> None:
        """A file or a folder; it need not be there."""
        with suppress(OSError):
            self.files.rm(f"{self.root}/{place}", recursive=True)

    @property
    def _is_folder(self) -> bool:
        return "file" in self.files.protocol

    def _check_there(self, place: str) -> None:
        if self._is_folder and not Path(self.home).is_dir():
            raise NotKept(
                f"cannot reach {place}: {self.home} is not there; the storage that servers share is gone"
            )

    @contextmanager
    def _whole(self, place: str) -> Iterator[str]:
        """Where to write: a folder shows what is half written, so there it gets its name last."""
        self._check_there(place)
        target = f"{self.root}/{place}"
        is_folder = self._is_folder
        draft = f"{target}.{secrets.token_hex(4)}.draft" if is_folder else target
        try:
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
            yield draft
            if is_folder:
                Path(draft).replace(target)
        except OSError as error:
            if is_folder:
                with suppress(OSError):
                    Path(draft).unlink()
            raise NotKept(
                f"cannot write {place}: {error}; the storage that servers share is full or gone"
            ) from None
