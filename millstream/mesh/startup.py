"""Facts that must be the same on every rank before they may work together, and what differs, in words.

Compared on the board, before any collective: ranks that differ would wait for each other, or worse, would
not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from millstream import __version__
from millstream.core.config import DiTConfig
from millstream.core.envelope import VERSION as ENVELOPE_VERSION
from millstream.core.errors import MeshError
from millstream.mesh.config import MeshConfig
from millstream.mesh.rendezvous import Rendezvous
from millstream.models.registry import source_of
from millstream.ops.attention import chosen_backend
from millstream.ops.precision import DTYPES
from millstream.wire.framing import VERSION as WIRE_VERSION

Facts = Mapping[str, str]


def facts_of(config: MeshConfig, backend: str) -> dict[str, str]:
    """Return all facts that the front and every rank know of themselves."""
    return {
        "millstream": __version__,
        "torch": str(torch.__version__),
        "wire": f"{WIRE_VERSION}, envelope {ENVELOPE_VERSION}",
        "topology": str(config.topology),
        "model": config.model,
        "weights from": source_of(config.weights),
        "loras": repr(config.loras),
        "device": config.device,
        "dtype": config.dtype,
        "backend": backend,
        "limits": repr(config.limits),
        "compile": config.compile_backend or "off",
        "exchange groups": str(config.exchange_groups),
        "speed": ", ".join(config.speed.names) or "off",
    }


def facts_of_card(device: torch.device) -> dict[str, str]:
    """Return the card that a rank of the mesh works on: a slower one would keep the others waiting, another
    kind would round differently."""
    return {"card": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}


def facts_of_share(config: MeshConfig, dit: DiTConfig, device: torch.device, weights: str) -> dict[str, str]:
    """Return what else a rank of the mesh knows of itself, once it has its share. `weights` is the DiT's
    fingerprint."""
    head_width = dit.width // dit.heads
    dtype = DTYPES[config.dtype]
    return {
        "weights": weights,
        "attention": chosen_backend(dit.heads, head_width, device=device, dtype=dtype),
        "threads": str(torch.get_num_threads()),
    }


def differences(by_rank: Mapping[int, Facts]) -> list[str]:
    """One line for each fact on which the ranks that state it do not agree."""
    names = dict.fromkeys(name for facts in by_rank.values() for name in facts)
    lines = []
    for name in names:
        said = {rank: facts[name] for rank, facts in by_rank.items() if name in facts}
        if len(set(said.values())) > 1:
            lines.append(f"{name}: " + "; ".join(f"rank {rank} has {value}" for rank, value in said.items()))
    return lines


def agree(
    rendezvous: Rendezvous, rank: int, ranks: Sequence[int], facts: Facts, *, stage: str, timeout_s: float
) -> dict[int, dict[str, str]]:
    """Compare facts with those of `ranks` and return each one's, if they agree. A difference is raised on
    each of them."""
    assert rank in ranks, f"rank {rank} compares itself with {ranks}"
    rendezvous.post(f"{stage}/{rank}", dict(facts))
    found: dict[int, dict[str, str]] = rendezvous.collect(stage, ranks, timeout_s=timeout_s)
    differing = differences(found)
    if differing:
        raise MeshError(f"ranks differ ({stage}). " + " | ".join(differing))
    return found
