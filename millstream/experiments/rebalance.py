"""Have blocks change stages between chunks, with their weights and every session's keys and values, when
stages drift apart.

A stage may become slower than another: a device that throttles, a front that shares it. What each stage was
busy with is measured all the time; every rank of the mesh learns all measures and comes to the same split. No
chunk is under way meanwhile, and none is lost: sessions go on with the same keys and values elsewhere. Fast
blocks travel as they are, with the scales of their e4m3; calls that were recorded are recorded anew.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.generation.answers import QueuedDeliveries
from millstream.generation.generator import Generator, SessionCache
from millstream.generation.stopwatch import Stopwatch
from millstream.models.dit import Block, CausalDiT, CrossKV
from millstream.models.fast.block import FastBlock
from millstream.models.fast.stack import FastStack
from millstream.models.kv import KVRing
from millstream.models.weights.fill import frozen
from millstream.parallel.balance import Bounds, better_split, owner
from millstream.parallel.collectives import PendingCollective
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.wire.parcel import Parcel

REBALANCE_EVERY = 32
"""Runs between two looks at how long the stages of a pipeline are busy."""


class HeldCache(NamedTuple):
    """Keys, values and prompt that a session has on a stage."""

    ring: KVRing
    cross: CrossKV | None


class RebalancingGenerator(Generator):
    """A rank's generator of a pipeline whose blocks change stages when these drift apart."""

    def __init__(self, dit: CausalDiT | MeshDiT, stopwatch: Stopwatch) -> None:
        super().__init__(dit, stopwatch)
        self._runs = 0

    def begin(self, parcels: Sequence[Parcel]) -> QueuedDeliveries:
        self._runs += 1
        if self._runs % REBALANCE_EVERY == 0:
            rebalance(self)
        return super().begin(parcels)


def rebalance(generator: Generator) -> bool:
    """Move blocks if the stages have drifted apart; return whether any moved.

    Between chunks, on every rank of the mesh at the same time.
    """
    dit = generator.dit
    if not isinstance(dit, StagedDiT) or generator.num_staggered:
        return False
    bounds = better_bounds(dit, may_move=_has_room(generator))
    if bounds is None:
        return False
    for session_id, cache in generator.caches.items():
        generator.run_commit(session_id)
        cache.ring.own_window()
    moved = move_layers(
        dit, bounds, [HeldCache(cache.ring, cache.cross) for cache in generator.caches.values()]
    )
    generator.caches = {name: SessionCache(*each) for name, each in zip(generator.caches, moved, strict=True)}
    return True


def better_bounds(dit: StagedDiT, *, may_move: bool = True) -> Bounds | None:
    """The split that suits what was measured since the last time, the same on every rank; None if the present
    one does, or if `may_move` does not hold on all of them.

    A collective of the whole mesh, unless blocks must stay where they are.
    """
    if not dit.may_move:
        return None
    mine = torch.tensor([dit.busy.lap(), may_move], dtype=torch.float64, device=dit.patch_in.weight.device)
    busy, may = dit.mesh.collect(mine, "busy times").view(-1, 2).unbind(1)
    if not may.all():
        return None
    seconds = busy.view(dit.lane.size, dit.stage.size).amax(dim=1).tolist()
    counts = [stop - start for start, stop in zip(dit.bounds, dit.bounds[1:], strict=False)]
    assert min(seconds) >= 0, f"stages were busy for {seconds} s"
    assert min(counts) > 0, f"a stage of {dit.bounds} has no layer"
    slowness = [each / count for each, count in zip(seconds, counts, strict=True)]
    return better_split(dit.bounds, slowness=slowness)


def move_layers(dit: StagedDiT, bounds: Bounds, held: Sequence[HeldCache]) -> list[HeldCache]:
    """Give and take blocks until this stage has those of `bounds`; returns what sessions have then, in the
    same order."""
    place = dit.lane.place
    old = dit.bounds
    assert len(bounds) == len(old), f"{old} has other stages than {bounds}"
    assert bounds[-1] == old[-1], f"{old} has other layers than {bounds}"
    mine = {old[place] + index: layer for index, layer in enumerate(_layers(dit, held))}
    template = next(iter(mine.values()))
    sent = []
    for layer in range(old[-1]):
        giver = owner(layer, old)
        taker = owner(layer, bounds)
        if giver == taker:
            continue
        if place == giver:
            sent += _sent(dit, mine.pop(layer), taker)
        elif place == taker:
            mine[layer] = _taken(dit, template, giver)
    for pending in sent:
        pending.wait()
    kept = [mine[layer] for layer in range(bounds[place], bounds[place + 1])]
    dit.bounds = bounds
    _have(dit, kept)
    return [_rebuilt(each, [layer.caches[index] for layer in kept]) for index, each in enumerate(held)]


class _Layer(NamedTuple):
    """One layer of everything: its block, and each session's row of the ring, its keys and values of the
    prompt, by name."""

    block: Block | FastBlock
    beside: list[Tensor]
    """Tensors of the layer that fast blocks keep elsewhere: its modulation."""
    caches: list[dict[str, Tensor]]

    def tensors(self) -> list[Tensor]:
        return [
            *(parameter.data for parameter in self.block.parameters()),
            *self.beside,
            *(x for cache in self.caches for x in cache.values()),
        ]


def _has_room(generator: Generator) -> bool:
    """Return whether there is room for all branches to have a window each, and another while blocks move.
    Those that share none have theirs."""
    windows = [cache.ring.window for cache in generator.caches.values()]
    shared = {id(window): window.num_bytes for window in windows}
    if len(shared) == len(windows):
        return True
    needed = 2 * sum(window.num_bytes for window in windows) - sum(shared.values())
    return generator.pages.has_room(needed, generator.device)


def _layers(dit: StagedDiT, held: Sequence[HeldCache]) -> list[_Layer]:
    blocks = dit.dit.blocks
    beside = (
        [[each] for each in blocks.modulations_N16D.data]
        if isinstance(blocks, FastStack)
        else [[] for _ in blocks]
    )
    rows = ([_row(each, index) for each in held] for index in range(len(blocks)))
    return [_Layer(*layer) for layer in zip(blocks, beside, rows, strict=True)]


def _have(dit: StagedDiT, kept: Sequence[_Layer]) -> None:
    """Have these layers' blocks from now on."""
    blocks = dit.dit.blocks
    del blocks[:]
    blocks.extend(layer.block for layer in kept)
    if isinstance(blocks, FastStack):
        blocks.changed(torch.stack([modulation for layer in kept for modulation in layer.beside]))


def _row(held: HeldCache, index: int) -> dict[str, Tensor]:
    row = {name: tensor[index] for name, tensor in held.ring.state().items()}
    return (
        row if held.cross is None else row | {"cross_k": held.cross.k[index], "cross_v": held.cross.v[index]}
    )


def _sent(dit: StagedDiT, layer: _Layer, taker: int) -> list[PendingCollective]:
    to = dit.lane.ranks[taker]
    device = dit.patch_in.weight.device
    return [
        dit.lane.send(tensor.to(device).contiguous(), to=to, what="a layer") for tensor in layer.tensors()
    ]


def _taken(dit: StagedDiT, template: _Layer, giver: int) -> _Layer:
    """Receive a layer from another stage, shaped like one that is here already."""
    source = dit.lane.ranks[giver]
    device = dit.patch_in.weight.device
    pending = [
        dit.lane.receive(
            torch.empty(tensor.shape, dtype=tensor.dtype, device=device), source=source, what="a layer"
        )
        for tensor in template.tensors()
    ]
    arrived = iter([each.wait() for each in pending])
    # What ranks share is not copied, and what has arrived takes the place of the other block's weights.
    kept = {id(each): each for each in (dit.stage, getattr(dit.dit.blocks, "spread", None))}
    weights = {id(parameter): frozen(next(arrived)) for parameter in template.block.parameters()}
    block = copy.deepcopy(template.block, kept | weights)
    beside = [next(arrived) for _ in template.beside]
    caches = [
        {name: next(arrived).to(tensor.device) for name, tensor in cache.items()} for cache in template.caches
    ]
    assert next(arrived, None) is None, "a layer came with more tensors than it has"
    return _Layer(block, beside, caches)


def _rebuilt(held: HeldCache, rows: list[dict[str, Tensor]]) -> HeldCache:
    old = held.ring
    stacked = {name: torch.stack([row[name] for row in rows]) for name in held.ring.state()}
    ring = KVRing(replace(old.shape, layers=len(rows)), device=old.k.device, dtype=old.k.dtype, pool=old.pool)
    ring.resume(stacked, old.slots.frames, old.slots.written)
    if held.cross is None:
        return HeldCache(ring, None)
    return HeldCache(
        ring, CrossKV(tuple(row["cross_k"] for row in rows), tuple(row["cross_v"] for row in rows))
    )
