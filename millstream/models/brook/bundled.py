"""The trained Brook that comes with the package, and the fingerprint its file must have."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "bundled"
"""What `--weights` calls it."""
PATH = Path(__file__).parent / "brook.safetensors"
FINGERPRINT = "1fd512cb05e03640ea9d7281f9c52524"
