"""Reads a Chrome or Kineto trace a block of events at a time, from `.json` or `.json.gz`, in bounded memory.

Knows JSON and nothing of what events mean: the caller chooses the type that they are decoded to. A window of
text slides over the file; an event, or anything else in the file, that does not fit into it is refused, as is
a file that ends too soon.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from millstream.core.errors import TraceError

BLOCK = 1 << 20
"""Characters read at a time."""
MAX_VALUE = 64 << 20
"""Characters of one event, or of one entry beside the events."""
MAX_TEXT = 64 << 30
"""Characters of a whole trace, unpacked: a small file that unpacks for ever ends here."""
_SPACE = re.compile(r"[\s,]*")
_DECODER = JSONDecoder(strict=False)  # names of kernels hold what they like
E = TypeVar("E")


class TraceFile(Generic[E]):
    """A trace file: read `blocks()` once, then `metadata` holds the other entries of the file."""

    def __init__(
        self,
        path: Path,
        decoder: msgspec.json.Decoder[list[E]],
        mend: Callable[[dict[str, Any]], E],
        *,
        block: int = BLOCK,
    ) -> None:
        """`mend` makes an event of what `decoder` does not take: values of other types, and what is not quite
        JSON."""
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.unclosed = False
        """True if a bare list of events ended without its bracket; what follows then is not known."""
        self._decoder = decoder
        self._mend = mend
        self._block = block

    def blocks(self) -> Iterator[list[E]]:
        with _open(self.path) as file:
            text = _Window(file, self.path, self._block)
            match text.peek():
                case "":
                    raise TraceError(f"{self.path} is empty; take the trace again")
                case "[":
                    yield from self._list(text, may_stop=True)
                case "{":
                    yield from self._object(text)
                case _:
                    raise TraceError(
                        f"{self.path} is not a trace; give a Chrome or Kineto trace, .json or .json.gz"
                    )

    def _object(self, text: _Window) -> Iterator[list[E]]:
        text.skip("{")
        seen = False
        while text.peek() != "}":
            key = text.value()
            text.skip(":")
            if key == "traceEvents" and text.peek() == "[":
                seen = True
                yield from self._list(text, may_stop=False)
            else:
                self.metadata[str(key)] = text.value()
        if not seen:
            raise TraceError(f"{self.path} has no traceEvents; give a Chrome or Kineto trace")

    def _list(self, text: _Window, *, may_stop: bool) -> Iterator[list[E]]:
        text.skip("[")
        while (char := text.peek()) != "]":
            if not char and may_stop:
                self.unclosed = True
                return
            event = text.value()
            if not isinstance(event, dict):
                raise TraceError(
                    f"{self.path} is not a trace: its list holds {type(event).__name__}, not events"
                )
            yield [self._mend(event)]
            yield text.alike(self._decoder)
        text.skip("]")


class _Window:
    """Part of the text that is being read."""

    def __init__(self, file: IO[str], path: Path, block: int) -> None:
        self._file = file
        self._path = path
        self._block = block
        self._text = ""
        self._at = 0
        self._ended = False
        self._read = 0
        self._one_by_one = False
        """True if decoding the rest of this text at once failed: it is no plain JSON."""

    def peek(self) -> str:
        """Return the next character that is neither space nor comma; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None, "the pattern matches nothing as well"
            self._at = space.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, char: str) -> None:
        found = self.peek()
        if not found:
            raise self._cut_off()
        if found != char:
            raise TraceError(f"{self._path} is not a trace: {found!r} where {char!r} belongs; take it again")
        self._at += 1

    def alike(self, decoder: msgspec.json.Decoder[list[E]]) -> list[E]:
        """Return the following values that are in the text completely and written like the value before them.
        They are decoded at once, which is much faster."""
        text = self._text
        end = self._at
        if self._one_by_one or self.peek() != "{" or self._text is not text:
            return []
        last = text.rfind(
            "}" + text[end : self._at + 1], self._at
        )  # as the one before ends and the next begins
        try:
            found = decoder.decode(f"[{text[self._at : last + 1]}]") if last >= 0 else []
        except (msgspec.DecodeError, RecursionError):
            self._one_by_one = (
                True  # another type than was thought, what JSON does not allow, or an end that was none
            )
            return []
        self._at = max(self._at, last + 1)
        return found

    def value(self) -> Any:
        """Read one complete JSON value."""
        if not self.peek():
            raise self._cut_off()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (JSONDecodeError, RecursionError) as error:
                if len(self._text) - self._at > MAX_VALUE:
                    raise TraceError(
                        f"{self._path} is not a trace: no event ends within {MAX_VALUE >> 20} MiB"
                    ) from None
                if self._is_nonsense(error):
                    raise TraceError(f"{self._path} is not a trace: it is not JSON") from None
                if not self._more():
                    raise self._cut_off() from None
                continue
            if end < len(self._text) or not self._more():  # a number at the very edge may go on behind it
                self._at = end
                return value

    def _is_nonsense(self, error: Exception) -> bool:
        """Return whether the error is far from the end of what was read, so that more text will not mend
        it."""
        if isinstance(error, RecursionError):
            return True
        assert isinstance(error, JSONDecodeError), type(error)
        unfinished = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 64
        return not unfinished

    def _more(self) -> bool:
        if self._ended:
            return False
        try:
            block = self._file.read(self._block)
        except EOFError:
            raise self._cut_off() from None
        except (OSError, zlib.error) as error:
            raise TraceError(f"{self._path} cannot be unpacked ({error}); take the trace again") from None
        self._ended = not block
        self._read += len(block)
        if self._read > MAX_TEXT:
            raise TraceError(
                f"{self._path} is larger than {MAX_TEXT >> 30} GiB unpacked; capture fewer chunks"
            )
        self._text = self._text[self._at :] + block
        self._at = 0
        self._one_by_one = False
        return bool(block)

    def _cut_off(self) -> TraceError:
        return TraceError(f"{self._path} is cut off; take the trace again and let it finish")


def _open(path: Path) -> IO[str]:
    """Open the file as text, packed or not, whatever its name."""
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        if packed:
            return TextIOWrapper(gzip.GzipFile(path), encoding="utf-8", errors="replace")
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
