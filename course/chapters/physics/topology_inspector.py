"""Contents of this machine and how they are connected: cores, memory nodes, GPUs and the links between
them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch

from course.reader import Reader

NODES = Path("/sys/devices/system/node")


def run(reader: Reader) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores, "there is at least one core"
    reader.measured(f"cores that this process may use: {cores}")
    nodes = memory_nodes()
    reader.measured(f"memory nodes: {len(nodes)}, with cores {'; '.join(nodes) or 'unknown'}")
    reader.measured(f"GPUs that torch sees: {torch.cuda.device_count()}")
    for line in links_between_gpus():
        reader.measured(f"  {line}")
    slowest = (
        "NVLink or PCIe" if torch.cuda.device_count() > 1 else "memory, which ranks on one machine share"
    )
    reader.measured(f"what messages between ranks here go through: {slowest}")


def memory_nodes() -> list[str]:
    """The cores of each, where the system says; ranks whose cores are on one node exchange data faster."""
    return [
        (node / "cpulist").read_text().strip()
        for node in sorted(NODES.glob("node[0-9]*"))
        if (node / "cpulist").is_file()
    ]


def links_between_gpus() -> list[str]:
    """The matrix of nvidia-smi: NV18 is eighteen NVLinks, PIX one PCIe switch, SYS the way through both
    processors."""
    if torch.cuda.device_count() < 2 or shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout.splitlines()
