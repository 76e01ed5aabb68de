"""How a part is split into files: runs of tensors, each as long as fits."""

from __future__ import annotations

from collections.abc import Mapping

SHARD_BYTES = 4 << 30


def in_shards(sizes: Mapping[str, int], most: int = SHARD_BYTES) -> list[list[str]]:
    """Names by file, from the bytes of each; a tensor larger than a file may be has one to itself."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return shards


def shard_names(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
