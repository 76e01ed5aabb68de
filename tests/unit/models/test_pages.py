"""Forked rings against copied ones, and the pages they hold against sets that simply count them."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.core.errors import PoolFull
from millstream.models.kv import KVRing, held_bytes
from millstream.models.pages import PagePool
from millstream.models.ring_shape import RingShape
from tests.unit.models.test_fast_dit import WIDE, ActiveRecording, recorded
from tests.unit.models.test_fast_dit import ring as wide_ring
from tests.unit.models.test_fast_dit import stream as streamed
from tests.unit.models_for_tests import DIT, dit
from tests.unit.ops.test_quantised_window import fast

CPU = torch.device("cpu")
TOKENS = 2
KINDS = {
    "ring": dict(window=5, sink=0),
    "sink": dict(window=5, sink=2),
    "windowed": dict(window=5, sink=2, positions="windowed"),
    "padded": dict(window=4, sink=1, multiple=7),
}


def make_ring(
    *, window: int, sink: int, positions: str = "absolute", multiple: int = 1, pool: PagePool | None = None
) -> KVRing:
    shape = RingShape(
        layers=2, heads=1, head_width=12, grid=(1, TOKENS), window=window, sink=sink, positions=positions
    )
    return KVRing(shape, device=CPU, dtype=torch.float32, key_multiple=multiple, pool=pool)


def written(ring: KVRing, seed: int) -> list[torch.Tensor]:
    """All that each layer attends to after its keys and values were written to the placed frames."""
    numbers = torch.Generator().manual_seed(seed)
    seen = []
    for layer in range(ring.shape.layers):
        k, v = torch.randn(2, 1, len(ring.index), 1, 12, generator=numbers)
        answer = ring.write(layer, k, v)
        seen += [
            *answer[:2],
            *ring.span(layer, rounded=True)[:2],
            *([] if answer.bias is None else [answer.bias]),
        ]
    return [each.clone() for each in seen]


def copied(ring: KVRing) -> KVRing:
    """What a fork was before there were pages: a ring with a window of its own."""
    other = KVRing(ring.shape, device=CPU, dtype=torch.float32, key_multiple=ring.key_multiple)
    other.resume(ring.state(), ring.slots.frames, ring.slots.written)
    return other


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@dataclass
class Branch:
    ring: KVRing
    plain: KVRing
    """The same stream in a ring that was never forked."""
    labels: list[int | None]
    """A number for each page that its slots refer to."""
    family: int
    is_placed: bool = False


@dataclass
class Tree:
    """Branches, and a model of their pages: who refers to which, and which lie in the window of each
    family."""

    kind: dict
    pool: PagePool = field(default_factory=PagePool)
    branches: list[Branch] = field(default_factory=list)
    lying: dict[int, list[int | None]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        empty = [None] * self.kind["window"]
        first = Branch(
            make_ring(**self.kind, pool=self.pool), make_ring(**self.kind), list(empty), self.new()
        )
        self.branches.append(first)
        self.lying[first.family] = list(empty)

    def new(self) -> int:
        self.count += 1
        return self.count

    def act(self, what: str, which: int, size: int) -> None:
        branch = self.branches[which % len(self.branches)]
        getattr(self, what)(branch, size)

    def fork(self, branch: Branch, size: int) -> None:
        branch.is_placed = False
        other = Branch(branch.ring.fork(), copied(branch.plain), list(branch.labels), branch.family)
        self.branches.append(other)

    def chunk(self, branch: Branch, size: int) -> None:
        start = branch.plain.slots.newest + 1
        self.place(branch, list(range(start, start + size)), kv_bias=1.0 if size == 1 else 0.5)

    def again(self, branch: Branch, size: int) -> None:
        if branch.plain.slots.newest >= size:
            self.place(
                branch, list(range(branch.plain.slots.newest + 1 - size, branch.plain.slots.newest + 1))
            )

    def place(self, branch: Branch, frames: list[int], *, kv_bias: float = 1.0) -> None:
        for ring in (branch.ring, branch.plain):
            ring.place(frames, kv_bias=kv_bias)
        branch.is_placed = True
        self.enter(branch)
        shape, held = branch.plain.shape, min(branch.plain.slots.written, branch.plain.shape.window)
        slots = {slot for slot, frame in enumerate(branch.plain.slots.frames) if frame in frames}
        if shape.positions == "windowed":
            sink = [
                (slot, frame)
                for slot, frame in enumerate(branch.plain.slots.frames[: shape.sink])
                if frame >= 0
            ]
            if any(frames[-1] + 1 - shape.window + slot > frame for slot, frame in sink):
                slots |= {slot for slot, _ in sink}
        for slot in slots:
            others = [
                each
                for each in self.branches
                if each is not branch and each.labels[slot] == branch.labels[slot]
            ]
            if branch.labels[slot] is None or others:
                branch.labels[slot] = self.lying[branch.family][slot] = self.new()
        self.pad(branch, held)
        self.write(branch)

    def commit(self, branch: Branch, size: int) -> None:
        """Write the placed frames once more, whoever had the window meanwhile."""
        if branch.is_placed:
            branch.ring.come_back()
            self.enter(branch)
            self.pad(branch, min(branch.plain.slots.written, branch.plain.shape.window))
            self.write(branch)

    def write(self, branch: Branch) -> None:
        seed = self.new()
        assert same(written(branch.ring, seed), written(branch.plain, seed))

    def reset(self, branch: Branch, size: int) -> None:
        branch.ring.reset()
        branch.plain.reset()
        branch.labels = [None] * len(branch.labels)
        branch.is_placed = False

    def drop(self, branch: Branch, size: int) -> None:
        if len(self.branches) > 1:
            self.branches.remove(branch)

    def part(self, branch: Branch, size: int) -> None:
        branch.ring.own_window()
        branch.is_placed = False
        branch.family, branch.labels = (
            self.new(),
            [None if label is None else self.new() for label in branch.labels],
        )
        self.lying[branch.family] = list(branch.labels)

    def enter(self, branch: Branch) -> None:
        for slot, label in enumerate(branch.labels):
            if label is not None:
                self.lying[branch.family][slot] = label

    def pad(self, branch: Branch, held: int) -> None:
        """Zeros behind the last frame take what lies there."""
        multiple = branch.plain.key_multiple
        window = branch.plain.shape.window
        end = -(-held * TOKENS // multiple) * multiple
        for slot in range(held, min(window, -(-end // TOKENS))):
            self.lying[branch.family][slot] = None

    def check(self) -> None:
        referred = {
            (each.family, slot, label)
            for each in self.branches
            for slot, label in enumerate(each.labels)
            if label
        }
        lying = {
            (family, slot, label) for family, pages in self.lying.items() for slot, label in enumerate(pages)
        }
        assert self.pool.pages_in_use == len(referred - lying)
        for branch in self.branches:
            assert (branch.ring.slots.frames, branch.ring.slots.written) == (
                branch.plain.slots.frames,
                branch.plain.slots.written,
            )
            assert self.pool.bytes_in_use == self.pool.pages_in_use * branch.ring.window.page_bytes

    def check_contents(self) -> None:
        for branch in self.branches:
            slots = [slot for slot, frame in enumerate(branch.plain.slots.frames) if frame >= 0]
            for name, tensor in branch.plain.state().items():
                shown = [slot for slot in slots if (slot + 1) * TOKENS <= tensor.shape[2]]
                mine, its = (
                    each.unflatten(2, (-1, TOKENS))[:, :, shown]
                    for each in (branch.ring.state()[name], tensor)
                )
                assert torch.equal(mine, its), name


ACTIONS = ("fork", "chunk", "chunk", "chunk", "again", "commit", "commit", "reset", "drop", "part")
actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7), st.integers(1, 2)), max_size=20)


@pytest.fixture(scope="module")
def _only_new_garbage() -> None:
    """What other tests left is not looked through again for every example."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow
@pytest.mark.usefixtures("_only_new_garbage")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(st.integers(1, 4), actions)
@example(
    1, [("again", 0, 1), ("chunk", 1, 2), ("commit", 0, 1)]
)  # the window is not full, and a branch writes where zeros were
@example(
    4, [("chunk", 0, 1), ("chunk", 1, 1), ("commit", 0, 1), ("chunk", 1, 2), ("chunk", 0, 2)]
)  # a sink turned twice
def test_forks_are_copies_bit_for_bit_and_hold_the_pages_that_differ(
    kind: str, past: int, steps: list[tuple[str, int, int]]
) -> None:
    tree = Tree(KINDS[kind])
    for step in [*past * [("chunk", 0, 2)], ("fork", 0, 1), *steps]:
        tree.act(*step)
        tree.check()
    tree.check_contents()
    pool = tree.pool
    del tree
    gc.collect()
    assert (pool.pages_in_use, pool.bytes_in_use, pool.promised_bytes) == (0, 0, 0)


def filled(chunks: int = 4, *, pool: PagePool | None = None, **kind: object) -> KVRing:
    ring = make_ring(**{"window": 6, "sink": 0, **kind}, pool=pool)
    for chunk in range(chunks):
        go_on(ring)
        written(ring, chunk)
    return ring


def go_on(ring: KVRing) -> None:
    ring.place([ring.slots.newest + 1, ring.slots.newest + 2])


@pytest.mark.parametrize("kind", [{}, dict(sink=2, positions="windowed")])
def test_a_stream_that_goes_straight_on_copies_no_page(kind: dict) -> None:
    pool = PagePool()
    ring = filled(20, pool=pool, **kind)
    assert (pool.copies, pool.promised_bytes) == (0, 0)
    ring.fork()  # and is forgotten
    for _ in range(10):
        go_on(ring)
    assert (pool.copies, pool.promised_bytes) == (0, 0)


def test_sixteen_branches_hold_one_window_right_after_the_fork() -> None:
    one = filled(sink=2, positions="windowed")
    branches = [one, *(one.fork() for _ in range(16))]
    assert held_bytes(branches) == held_bytes([copied(one)]) == one.num_bytes
    assert one.pool.copies == 0


def test_branches_that_go_on_hold_a_window_and_the_pages_that_differ() -> None:
    one = filled()
    before = one.num_bytes
    branches = [one.fork() for _ in range(3)]
    page = one.window.page_bytes
    go_on(branches[0])
    assert held_bytes([one, *branches]) == before + 2 * page, "the two that the others still have"
    go_on(branches[1])
    assert held_bytes([one, *branches]) == before + 4 * page, "and the two of the first, who left the window"
    del one, branches[2]
    assert held_bytes(branches) == before + 2 * page, "nobody has what was there at first"


def test_what_is_kept_of_a_past_is_what_has_left_the_window() -> None:
    ring = filled()
    kept = []
    for chunk in range(5):
        kept.append((ring.fork(), copied(ring)))
        go_on(ring)
        written(ring, 100 + chunk)
    assert ring.pool.pages_in_use == 2 * len(kept)
    assert ring.pool.promised_bytes == (6 + 2 * 4) * ring.window.page_bytes
    for seed, (branch, plain) in enumerate(reversed(kept)):
        for each in (branch, plain):
            go_on(each)
        assert same(written(branch, seed), written(plain, seed))


def test_a_fork_beyond_the_pool_is_refused_and_changes_nothing() -> None:
    pool = PagePool()
    ring = filled(pool=pool)
    pool.capacity_bytes = 6 * ring.window.page_bytes
    kept = ring.fork()
    plain = copied(ring)
    for each in (ring, plain):
        go_on(each)
        written(each, 1)
    before = pool.promised_bytes, pool.pages_in_use, list(ring.slots.frames)
    with pytest.raises(PoolFull, match=r"may come to need .* end a branch"):
        ring.fork()
    assert (pool.promised_bytes, pool.pages_in_use, ring.slots.frames) == before
    for each in (ring, plain):
        go_on(each)
    assert same(written(ring, 2), written(plain, 2))
    del kept
    ring.fork()


def test_a_branch_that_may_not_grow_is_told_before_it_places_anything() -> None:
    pool = PagePool()
    ring = filled(pool=pool)
    pool.capacity_bytes = 12 * ring.window.page_bytes
    first, second, third = (ring.fork() for _ in range(3))
    go_on(first)
    before = list(second.slots.frames), pool.promised_bytes, pool.pages_in_use
    with pytest.raises(PoolFull):
        go_on(second)
    assert (second.slots.frames, pool.promised_bytes, pool.pages_in_use) == before
    del third
    go_on(second)


def test_a_copy_made_while_a_chunk_is_under_way_keeps_the_pages_of_its_ring() -> None:
    """A commit that is owed has a copy of its ring as it was placed; both end together."""
    ring = filled()
    branch = ring.fork()
    go_on(branch)
    held = branch.as_placed()
    del branch
    gc.collect()
    assert ring.pool.pages_in_use == 2
    del held
    gc.collect()
    assert ring.pool.promised_bytes == 0


@pytest.mark.slow
@torch.inference_mode()
def test_a_window_in_8_bits_is_the_same_after_a_branch_has_used_it() -> None:
    model = fast()
    plain = wide_ring(WIDE, multiple=40)
    cross = model.read_prompt(torch.ones(1, 7, 24))
    latents = torch.randn(8, 1, 3, 4, 8, 12)
    level = torch.full((1, 3), 700.0)

    def chunk(memory: KVRing, number: int) -> torch.Tensor:
        memory.place([memory.slots.newest + 1 + frame for frame in range(3)])
        return model(latents[number], level, memory, cross)

    for number in range(3):
        chunk(plain, number)
        model.commit(latents[number], torch.zeros(1, 3), plain, cross)
    forked = wide_ring(WIDE, multiple=40)
    forked.resume(plain.state(), plain.slots.frames, plain.slots.written)
    other = forked.fork()
    chunk(plain, 3), chunk(forked, 3)
    chunk(other, 4)
    forked.come_back()
    for memory in (plain, forked):
        model.commit(latents[3], torch.zeros(1, 3), memory, cross)
    chunk(other, 5)
    assert torch.equal(chunk(forked, 6), chunk(plain, 6))
    assert forked.packed is other.packed, "one for the window"


@pytest.mark.slow
@torch.inference_mode()
def test_branches_replay_what_was_recorded_of_the_window_that_they_share() -> None:
    tape = ActiveRecording()
    model = dit()
    ring = wide_ring(DIT, multiple=40)
    recorded(model, tape)
    streamed(model, ring, 8)
    branch = ring.fork()
    plain = copied(ring)
    cross = model.read_prompt(torch.ones(1, 7, 24))
    latents = torch.randn(4, 1, 3, 4, 8, 12)

    def chunk(memory: KVRing, number: int) -> torch.Tensor:
        memory.place([memory.slots.newest + 1 + frame for frame in range(3)])
        return model(latents[number], torch.full((1, 3), 700.0), memory, cross).clone()

    found = []
    for number in range(3):
        chunk(ring, 3)
        found.append(chunk(branch, number))
    assert tape.recorded == 2, "steps and commits of one window"
    assert all(torch.equal(chunk(plain, number), each) for number, each in enumerate(found))
