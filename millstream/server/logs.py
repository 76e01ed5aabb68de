"""Log lines for people, or as JSON for programs: with the session and the chunk they are about where there is one."""

from __future__ import annotations

import json
import logging
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


def set_up_logging(*, as_json: bool) -> None:
    """Of the whole process, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter() if as_json else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
