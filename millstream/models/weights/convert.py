"""Rewrites a checkpoint of any known layout as ours: our names, safetensors, one `config.json`.

Dtypes stay as found. One output shard is in memory at a time; LoRAs are merged into its tensors before it is
written. Everything is checked before the first byte is written, and files appear together at the end.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import ModelSpec
from millstream.core.errors import WeightsError
from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.models.conditions.files import FILE
from millstream.models.wan.layouts import Part
from millstream.models.weights.files import SUFFIXES, find_shards, open_shard
from millstream.models.weights.fill import everything
from millstream.models.weights.locate import ModelFiles, locate
from millstream.models.weights.lora import Merged, merging
from millstream.models.weights.manifest import MANIFEST, Manifest, PartEntry, read_manifest
from millstream.models.weights.parts import Layout, expected_shapes, infer_dit, match_preset
from millstream.models.weights.survey import Survey, TensorPlace, refuse_misfit, scan, shapes_of, survey
from millstream.models.weights.write import SHARD_BYTES, in_shards, shard_names


@dataclass(frozen=True, kw_only=True, slots=True)
class PartReport:
    """Result for one part. Unexpected tensors were left out; the other two lists are empty, or nothing is
    written."""

    layout: Layout
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[str, ...]
    chosen: str
    """Name of the generator that was taken, where a file has two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    model: str
    parts: dict[Part, PartReport]
    tokenizer: bool

    def lines(self) -> list[str]:
        """For people: one line a part, and one for what was left out."""
        lines = [f"{self.model}: {', '.join(self.parts)}{' and tokenizer' if self.tokenizer else ''}"]
        for part, found in self.parts.items():
            lines.append(
                f"{part}: {found.num_tensors} tensors, {found.num_bytes / 1e9:.2f} GB, from the "
                f"{found.layout} layout"
            )
            if found.chosen:
                other = (
                    "--no-ema takes generator"
                    if found.chosen == "generator_ema"
                    else "--ema takes generator_ema"
                )
                lines.append(f"{part}: of the two generators there, {found.chosen}; {other}")
            if found.unexpected:
                lines.append(
                    f"{part}: left out {len(found.unexpected)} unexpected: {', '.join(found.unexpected)}"
                )
        return lines


def convert(
    source: Path,
    target: Path,
    *,
    model: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    loras: Sequence[tuple[Path, float]] = (),
    prefer_ema: bool = True,
) -> ConvertReport:
    """Write what `source` holds into the folder `target`, beside parts that are already there."""
    files = locate([source])
    before = read_manifest(target)
    spec = _choose_model(files, model, before, prefer_ema)
    surveys = {part: _survey(part, spec, paths, prefer_ema) for part, paths in files.parts.items()}
    if loras and "dit" not in surveys:
        raise WeightsError(
            f"{source} holds no DiT to merge a LoRA into; name the LoRA where the DiT is converted"
        )
    with _disk_errors(target), ExitStack() as stack:
        merged = stack.enter_context(merging(loras, expected_shapes("dit", spec)))
        staging = stack.enter_context(Staging(target))
        parts = {}
        for part, result in surveys.items():
            merge = merged if part == "dit" else everything
            chosen = _chosen(files.parts[part], prefer_ema)
            parts[part] = _write_part(part, result, staging, shard_bytes, prefer_ema, merge, chosen)
        if files.tokenizer:
            _copy_tokenizer(files.tokenizer, staging)
        if files.injectors:
            shutil.copyfile(files.injectors, staging.path(FILE))
        after = _manifest(spec, source, parts, before)
        staging.path(MANIFEST).write_bytes(after.to_bytes())
    _remove_replaced(target, before, after)
    return ConvertReport(model=spec.name, parts=parts, tokenizer=files.tokenizer is not None)


def _choose_model(
    files: ModelFiles, asked: str | None, before: Manifest | None, prefer_ema: bool
) -> ModelSpec:
    """Asked for, or the one whose DiT this is, or the one already in the target."""
    if asked:
        spec = find_model(asked)
    elif files.dit:
        shapes = shapes_of(scan(files.dit, prefer_ema=prefer_ema))
        matched = match_preset(shapes)
        if matched is None:
            raise WeightsError(
                f"{files.dit[0]} is of no registered model: {infer_dit(shapes) or 'its DiT is incomplete'}"
            )
        spec = matched
    elif before:
        spec = find_model(before.model)
    else:
        raise WeightsError("without a DiT the model cannot be told from its weights; name the model")
    if before and before.model != spec.name and before.parts.keys() - files.parts.keys():
        raise WeightsError(
            f"the target already holds {before.model}, this is {spec.name}; choose another folder"
        )
    return spec


def _survey(part: Part, spec: ModelSpec, paths: Sequence[Path], prefer_ema: bool) -> Survey:
    result = survey(part, expected_shapes(part, spec), paths, prefer_ema=prefer_ema)
    refuse_misfit(result, part, paths, allow_unexpected=True)
    return result


def _write_part(
    part: Part,
    result: Survey,
    staging: Staging,
    shard_bytes: int,
    prefer_ema: bool,
    merged: Merged,
    chosen: str,
) -> PartReport:
    shards = in_shards({name: place.info.num_bytes for name, place in result.places.items()}, shard_bytes)
    names = shard_names(part, len(shards))
    for name, held in zip(names, shards, strict=True):
        places = {each: result.places[each] for each in held}
        save_file(_read(places, prefer_ema, merged), staging.path(name), metadata={"format": "pt"})
    return PartReport(
        layout=result.layout,
        files=tuple(names),
        num_tensors=len(result.places),
        num_bytes=sum(place.info.num_bytes for place in result.places.values()),
        missing=result.missing,
        unexpected=result.unexpected,
        reshaped=result.reshaped,
        chosen=chosen,
    )


def _chosen(paths: Sequence[Path], prefer_ema: bool) -> str:
    """Return which generator is read of files that have two; empty where none has."""
    for path in (shard for source in paths for shard in find_shards(source)):
        with open_shard(path, prefer_ema=prefer_ema) as shard:
            if shard.chosen:
                return shard.chosen
    return ""


def _read(places: Mapping[str, TensorPlace], prefer_ema: bool, merged: Merged) -> dict[str, Tensor]:
    """One output shard. Copied: tensors of a file may share storage or lie transposed, which safetensors
    refuses."""
    tensors = {}
    for path, group in itertools.groupby(places.items(), key=lambda item: item[1].path):
        with open_shard(path, prefer_ema=prefer_ema) as shard:
            for name, place in group:
                tensors[name] = merged(name, shard.read(place.name)).clone().contiguous()
    return tensors


def _copy_tokenizer(folder: Path, staging: Staging) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix not in SUFFIXES:  # weights may lie in the same folder
            shutil.copyfile(file, staging.path(f"tokenizer/{file.name}"))


def _manifest(
    spec: ModelSpec, source: Path, parts: Mapping[Part, PartReport], before: Manifest | None
) -> Manifest:
    entries = {
        part: PartEntry(files=list(report.files), source=source.resolve().name, layout=report.layout)
        for part, report in parts.items()
    }
    return Manifest(model=spec.name, parts={**(before.parts if before else {}), **entries})


def _remove_replaced(target: Path, before: Manifest | None, after: Manifest) -> None:
    kept = {name for entry in after.parts.values() for name in entry.files}
    for name in (name for entry in (before.parts.values() if before else ()) for name in entry.files):
        if name not in kept:
            (target / name).unlink(missing_ok=True)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise WeightsError(
            f"cannot write to {target} ({error}); free space there or choose another folder"
        ) from error
