"""Compares what a checkpoint holds with what a model needs, from names and shapes alone, before any tensor
data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import WeightsError
from millstream.models.wan.layouts import Part
from millstream.models.weights.files import Shape, TensorInfo, find_shards, open_shard
from millstream.models.weights.parts import Layout, canonical, identify, infer_dit, match_preset

_SHOWN = 3
TIED = "encoder.embed_tokens.weight"
TIED_TO = "shared.weight"
"""A second name that some files have for a text encoder's embedding."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies: the file, and its name there."""

    path: Path
    name: str
    info: TensorInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Missing, unexpected and reshaped tensors go by the names the files use."""

    layout: Layout
    places: dict[str, TensorPlace]
    """By our names, in the order of the files."""
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[str, ...]
    """Each with the shape expected and the one found."""
    likeness: str
    """The model that the files would fit, where their shapes tell."""


class WeightsMismatch(WeightsError):
    """Weights of another model. The message shows the first few names; `survey` has them all."""

    def __init__(self, message: str, survey: Survey) -> None:
        super().__init__(message)
        self.survey = survey


def scan(sources: Sequence[Path], *, prefer_ema: bool = True) -> dict[str, TensorPlace]:
    """Every tensor of a checkpoint by the name its files use."""
    places: dict[str, TensorPlace] = {}
    for path in (shard for source in sources for shard in find_shards(source)):
        with open_shard(path, prefer_ema=prefer_ema) as shard:
            for name, info in shard.infos.items():
                if name in places:
                    raise WeightsError(
                        f"{name} lies in both {places[name].path} and {path}; give one of them"
                    )
                places[name] = TensorPlace(path, name, info)
    return places


def shapes_of(places: Mapping[str, TensorPlace]) -> dict[str, Shape]:
    return {name: place.info.shape for name, place in places.items()}


def survey(
    part: Part, wanted: Mapping[str, Shape], sources: Sequence[Path], *, prefer_ema: bool = True
) -> Survey:
    """Compare the tensors of `sources` with the `wanted` shapes, which go by our names."""
    found = scan(sources, prefer_ema=prefer_ema)
    held, layout = identify(found, where=_listed(sources))
    if held != part:
        raise WeightsError(f"{_listed(sources)} holds a {held}, not a {part}; give each part its own file")
    theirs = canonical(part, layout, wanted)
    ours = {name: mine for mine, name in theirs.items()}
    if TIED in found:
        found.setdefault(TIED_TO, found.pop(TIED))
    return Survey(
        layout=layout,
        places={ours[name]: place for name, place in found.items() if name in ours},
        missing=tuple(name for name in ours if name not in found),
        unexpected=tuple(name for name in found if name not in ours),
        reshaped=tuple(
            f"{name} (expected {list(wanted[mine])}, found {list(found[name].info.shape)})"
            for name, mine in ours.items()
            if name in found and found[name].info.shape != wanted[mine]
        ),
        likeness=_likeness(shapes_of(found)),
    )


def refuse_misfit(result: Survey, part: Part, sources: Sequence[Path], *, allow_unexpected: bool) -> None:
    """Raise unless every wanted tensor is there in its shape."""
    counted = {"missing": result.missing, "reshaped": result.reshaped}
    if not allow_unexpected:
        counted["unexpected"] = result.unexpected
    if not any(counted.values()):
        return
    said = [f"{len(names)} {what}: {_first(names)}" for what, names in counted.items() if names]
    said += [result.likeness] if result.likeness else []
    raise WeightsMismatch(f"{_listed(sources)} does not fit this {part}: {'; '.join(said)}", result)


def _likeness(shapes: Mapping[str, Shape]) -> str:
    preset = match_preset(shapes)
    size = infer_dit(shapes)
    return f"its shapes are those of {preset.name}" if preset else f"it looks like {size}" if size else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _listed(sources: Sequence[Path]) -> str:
    return _first([str(source) for source in sources])
