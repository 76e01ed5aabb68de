"""The trained Brook that comes with the package, and the fingerprint its file must have."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "bundled"
"""What `--weights` calls it."""
PATH = Path(__file__).parent / "brook.safetensors"
FINGERPRINT = "f4ce9c178cbaab52381484b5029ebbaf"
