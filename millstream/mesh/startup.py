"""What must be the same on every rank before they may work together, and what differs, in words.

Compared on the board, before any collective: ranks that differ would wait for each other, or worse, would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from millstream import __version__
from millstream.core.envelope import VERSION as ENVELOPE_VERSION
from millstream.core.errors import MeshError
from millstream.mesh.config import MeshConfig
from millstream.mesh.rendezvous import Rendezvous
from millstream.wire.framing import VERSION as WIRE_VERSION

Facts = Mapping[str, str]


def facts_of(config: MeshConfig, backend: str, weights: str | None) -> dict[str, str]:
    """Everything a rank can say of itself. `weights` is its DiT's fingerprint; the front has none, and says nothing of it."""
    facts = {
        "millstream": __version__,
        "torch": str(torch.__version__),
        "wire": f"{WIRE_VERSION}, envelope {ENVELOPE_VERSION}",
        "topology": str(config.topology),
        "model": config.model,
        "loras": repr(config.loras),
        "device": config.device,
        "dtype": config.dtype,
        "backend": backend,
        "limits": repr(config.limits),
        "compile": config.compile_backend or "off",
        "head groups": str(config.head_groups),
        "speed": ", ".join(config.speed.names) or "off",
    }
    if weights is not None:
        facts |= {"weights": weights, "attention": attention_backends(), "threads": str(torch.get_num_threads())}
    return facts


def attention_backends() -> str:
    """What attention may resolve to here."""
    backends = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
    }
    return ", ".join(name for name, enabled in backends.items() if enabled)


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
    """What each of `ranks` says, if they agree; each of them learns of a difference and raises it."""
    rendezvous.post(f"{stage}/{rank}", dict(facts))
    found: dict[int, dict[str, str]] = rendezvous.collect(stage, ranks, timeout_s=timeout_s)
    differing = differences(found)
    if differing:
        raise MeshError(f"ranks differ ({stage}). " + " | ".join(differing))
    return found
