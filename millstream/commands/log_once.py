"""Under torchrun every rank meets the same mistake: one of them says it for all."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

PATIENCE = timedelta(seconds=10)


def is_first_to_say(line: str) -> bool:
    """Return whether no other rank has logged this line since the ranks were last started. Torchrun's store,
    which outlives them, is asked; where it cannot be asked, the answer is yes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    try:
        store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
        return int(store.add(f"said {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} {line}", 1)) == 1
    except (DistError, RuntimeError, ValueError):
        return True
