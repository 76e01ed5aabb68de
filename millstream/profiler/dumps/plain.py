"""Dumps as plain data, from JSON or from a pickle that may hold nothing but numbers, text and containers.

A pickle can name any function and have it called. Here a name is refused before it is looked up, so nothing
is.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

from millstream.core.errors import TraceError

MAX_BYTES = 1 << 30


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def load_plain(path: Path) -> Any:
    """Read a dump as plain data; raise an error of one line if it is not plain."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path} is larger than {MAX_BYTES >> 30} GiB; dump less")
        with path.open("rb") as file:
            packed = file.read(1) == b"\x80"
            file.seek(0)
            return _Plain(file).load() if packed else json.loads(file.read())
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    except TraceError:
        raise
    except Exception as error:  # a spoiled pickle fails in any way it likes; it is data of a stranger
        said = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise TraceError(f"{path} is not a dump of plain data ({said}); dump it again with torch") from None
