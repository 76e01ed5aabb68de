"""Log lines for people, or as JSON for programs: with the session and the chunk they are about where there is
one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

ABOUT = ("session", "chunk", "key")
"""Given as `extra`; a session by its label, which is too short to steer it with, a key by its name."""


class JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        about = [f"{name} {getattr(record, name)}" for name in ABOUT if hasattr(record, name)]
        return super().format(record) + (f" ({', '.join(about)})" if about else "")


class FewRepeats(logging.Filter):
    """Warnings of one line of code, whatever they say: one a minute, and the next says how many were left
    out.

    For loggers where a client can have a line written as often as it likes. What comes with a traceback
    always passes.
    """

    def __init__(self, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._next: dict[tuple[str, int], float] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.exc_info:
            return True
        line = (record.pathname, record.lineno)
        now = self._clock()
        if now < self._next.get(line, now):
            self._left_out[line] = self._left_out.get(line, 0) + 1
            return False
        self._next[line] = now + self._every_s
        if left_out := self._left_out.pop(line, 0):
            record.msg = f"{record.msg} ({left_out} more since this was last said)"
        return True


REPEATING = ("uvicorn.error", "asyncio", "millstream.server.transport.listener")
"""Loggers of what a client does before anything is known of it."""


def set_up_logging(*, as_json: bool) -> None:
    """Set up logging of the whole process, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter() if as_json else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    for name in REPEATING:
        logging.getLogger(name).addFilter(FewRepeats())
