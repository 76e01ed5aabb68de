"""Files as a whole: what is in one, and those that appear at the end or not at all.

What is not whole yet lies in a draft: a folder with a name of its own beside the final places, which also
catches the temporary files of the libraries that write there. A draft is locked for as long as its writer
lives, however that ends, so one that can be locked was left behind. (A process id in the name would not do:
containers on one disk count alike.)
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from millstream.core.errors import NotKept

DRAFT = re.compile(r"\.millstream-[0-9a-f]{16}\.partial")
"""Pattern of drafts' names; nothing else has such a name."""


def file_digest(path: Path) -> str:
    """Fingerprint of a file's bytes, read in pieces."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


class Draft:
    """A folder to write in, beside where its files will be."""

    def __init__(self, folder: Path) -> None:
        while True:
            self.path = folder / f".millstream-{secrets.token_hex(8)}.partial"
            self.path.mkdir()
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # where a disk knows no locks, nothing is ever taken for left behind
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.is_dir():
                return
            os.close(self._lock)  # swept before it was locked

    def publish(self, name: str, final: Path) -> None:
        """Move the finished file `name` to its final path. A device is never replaced by a file."""
        if os.path.lexists(final) and not final.is_file():
            raise FileExistsError(errno.EEXIST, "is there and no file", str(final))
        with (self.path / name).open("rb") as file:
            os.fsync(file.fileno())  # a full network disk may say so only now
        os.replace(self.path / name, final)

    def remove(self) -> None:
        """Remove the draft with all that is still in it. Never raises: an error that led here is the one to
        show."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def drafts(folder: Path) -> Iterator[Path]:
    """Return the paths of all drafts in the folder, those still being written among them."""
    with os.scandir(folder) as found:
        names = [each.name for each in found if DRAFT.fullmatch(each.name)]
    return (folder / name for name in names)


def left_behind(folder: Path) -> Iterator[Path]:
    """Drafts whose writer is gone, each for its finder alone until the next; afterwards it is removed."""
    for path in drafts(folder):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or not ours to open
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():  # not if its writer has just finished
                yield path
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its writer lives
            continue
        finally:
            os.close(lock)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder."""
    for _ in left_behind(folder):
        pass


class Staging:
    """Hands out places to write in. Leaving without an error makes the files appear, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, None] = {}
        self._made: list[Path] = []
        self._draft: Draft | None = None

    def __enter__(self) -> Staging:
        return self

    def path(self, name: str) -> Path:
        """Where to write what will be called `name`."""
        if self._draft is None:
            self._make(self.folder)
            sweep(self.folder)
            self._draft = Draft(self.folder)
        assert not Path(name).is_absolute(), f"{name} is not within {self.folder}"
        assert ".." not in Path(name).parts, f"{name} leaves {self.folder}"
        self._names[name] = None
        place = self._draft.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._draft is not None:
                for name in self._names:
                    self._make((self.folder / name).parent)
                    self._draft.publish(name, self.folder / name)
        finally:
            if self._draft is not None:
                self._draft.remove()
            for folder in reversed(self._made):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def _make(self, folder: Path) -> None:
        """One level at a time, so that what was made can be taken back."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir()
            self._made.append(folder)


def write_whole(path: Path, text: str) -> None:
    """It appears whole or not at all."""
    if path.is_dir():
        raise NotKept(f"cannot write {path}: it is a folder; name a file in it")
    try:
        with Staging(path.parent) as staging:
            staging.path(path.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotKept(
            f"cannot write {path}: {error.strerror}; free some space or choose another place"
        ) from None
