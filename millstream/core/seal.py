"""A record that holds the digest of its own content, so that a change made by hand shows.

The digest is of what the record says, not of how its file is laid out: keys in order, no spaces. It protects
against edits, not against forgery: a program that can write the record can seal it again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

FIELD = "digest"


def content_digest(record: dict[str, Any]) -> str:
    """SHA-256 of everything in the record but its digest."""
    content = {name: value for name, value in json.loads(json.dumps(record)).items() if name != FIELD}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    return record | {FIELD: content_digest(record)}


def is_as_sealed(record: dict[str, Any]) -> bool:
    """Compare the record's content with its digest; False if it has none."""
    return record.get(FIELD) == content_digest(record)
