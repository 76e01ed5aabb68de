"""Finds the parts of a model in folders and files of any known layout.

Looks at names inside files, not at what files are called. Reads no tensor data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.core.errors import WeightsError
from millstream.models.conditions.files import conditions_in, injector_file, is_injectors
from millstream.models.wan.layouts import Part
from millstream.models.weights.files import SAFETENSORS, SUFFIXES, find_shards
from millstream.models.weights.manifest import Manifest, read_manifest
from millstream.models.weights.parts import identify, recognise
from millstream.models.weights.survey import scan

_SUBFOLDERS = ("transformer", "vae", "text_encoder")
_TOKENIZERS = ("tokenizer", "google/umt5-xxl", ".")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "spiece.model")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """The files of each part, in any layout; empty where a part was not found."""

    dit: tuple[Path, ...] = ()
    vae: tuple[Path, ...] = ()
    text: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    injectors: Path | None = None
    """File of what enters the DiT besides words."""

    @property
    def parts(self) -> dict[Part, tuple[Path, ...]]:
        """Files of the parts that were found, by part."""
        every: dict[Part, tuple[Path, ...]] = {"dit": self.dit, "vae": self.vae, "text": self.text}
        return {part: files for part, files in every.items() if files}


def locate(paths: Sequence[Path]) -> ModelFiles:
    """A later path wins: name the base model first and a fine-tuned DiT after it."""
    files = ModelFiles()
    for path in paths:
        if not path.exists():
            raise WeightsError(f"{path} does not exist; check the path")
        injectors = injector_file(path) if conditions_in(path) is not None else None
        is_alone = is_injectors(path)
        parts = {} if is_alone else _parts_in_folder(path) if path.is_dir() else _part_of_file(path)
        tokenizer = _find_tokenizer(path) if path.is_dir() else None
        if not parts and not tokenizer and not injectors:
            raise WeightsError(
                f"{path} holds no part of a model; expected a Wan folder, original, diffusers or converted"
            )
        files = replace(
            files,
            **parts,
            tokenizer=tokenizer or files.tokenizer,
            injectors=injectors or files.injectors,
        )
    return files


def _part_of_file(path: Path) -> dict[Part, tuple[Path, ...]]:
    part, _ = identify(scan([path]), where=str(path))
    return {part: (path,)}


def _parts_in_folder(folder: Path) -> dict[Part, tuple[Path, ...]]:
    if manifest := read_manifest(folder):
        return _converted(folder, manifest)
    parts: dict[Part, tuple[Path, ...]] = {}
    for files in _checkpoints(folder):
        found = recognise(scan(files))
        if found is None:
            continue
        known = parts.setdefault(found[0], files)
        pickled_twin = (
            known[0].suffix == SAFETENSORS != files[0].suffix
        )  # the same weights, published in both formats
        if known != files and not pickled_twin:
            raise WeightsError(
                f"{folder} holds two of {found[0]}, {known[0].name} and {files[0].name}; give one by its own path"
            )
    return parts


def _converted(folder: Path, manifest: Manifest) -> dict[Part, tuple[Path, ...]]:
    return {part: tuple(folder / name for name in entry.files) for part, entry in manifest.parts.items()}


def _checkpoints(folder: Path) -> Iterator[tuple[Path, ...]]:
    """Files that belong together: named by an index, or numbered parts of one name. Safetensors come
    first."""
    for place in (folder, *(folder / name for name in _SUBFOLDERS)):
        groups: dict[str, list[Path]] = {}
        indexed = find_shards(place) if any(place.glob("*.index.json")) else []
        for suffix in SUFFIXES:
            for file in sorted(place.glob(f"*{suffix}")):
                stem = "" if file in indexed else re.sub(r"-\d+-of-\d+$", "", file.stem) + suffix
                groups.setdefault(stem, []).append(file)
        yield from map(tuple, groups.values())


def _find_tokenizer(folder: Path) -> Path | None:
    candidates = (folder / name for name in _TOKENIZERS)
    return next(
        (place for place in candidates if any((place / file).is_file() for file in _TOKENIZER_FILES)), None
    )
