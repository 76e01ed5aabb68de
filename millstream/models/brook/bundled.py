"""The trained Brook that comes with the package, and the fingerprint its file must have."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "bundled"
"""What `--weights` calls it."""
PATH = Path(__file__).parent / "brook.safetensors"
FINGERPRINT = "a811242b31fcff553a1cf5544893d273"
