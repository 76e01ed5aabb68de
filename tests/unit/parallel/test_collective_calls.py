"""What a rank called: counted, kept and told apart, at little cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.errors import CollectiveRefused
from millstream.parallel.collective_calls import CollectiveRecord, Kind, spelled
from millstream.parallel.collectives import RankGroup

Call = tuple[Kind, str, tuple[int, ...]]
CALLS: list[Call] = [
    ("sum", "mlp", (2, 3)),
    ("sum", "mlp", (3, 2)),
    ("sum", "norms", (2, 3)),
    ("collect", "mlp", (2, 3)),
]
GROUP = RankGroup("stage0", "mesh", (1, 2), 1, None)


def digest_of(calls: list[Call]) -> int:
    record = CollectiveRecord()
    for kind, what, shape in calls:
        record.begin(kind, what, GROUP, shape)
    return record.digests["stage0"]


@given(st.lists(st.sampled_from(CALLS), max_size=8), st.lists(st.sampled_from(CALLS), max_size=8))
def test_ranks_have_one_digest_if_they_called_the_same_in_the_same_order_and_only_then(
    calls: list[Call], others: list[Call]
) -> None:
    assert (digest_of(calls) == digest_of(others)) == (calls == others)


def test_what_two_ranks_alone_know_of_is_in_nobodys_digest() -> None:
    assert digest_of([CALLS[0], ("send", "activations", (2, 3)), CALLS[1]]) == digest_of(CALLS[:2])


def test_a_call_that_is_made_again_and_again_is_spelled_once() -> None:
    spelled.cache_clear()
    digest_of(100 * CALLS)
    assert spelled.cache_info().misses == len(CALLS)


def test_a_call_that_failed_is_not_done() -> None:
    record = CollectiveRecord()
    with record.begin("sum", "mlp", GROUP, (2, 3)):
        pass
    with pytest.raises(ConnectionError), record.begin("sum", "mlp", GROUP, (2, 3)):
        raise ConnectionError
    assert [called.done for called in record.last] == [True, False]


def test_inside_a_block_a_group_does_what_a_block_needs_and_nothing_else() -> None:
    alone = RankGroup("alone", "mesh", (1,), 1, None)
    x = torch.ones(2)
    with alone.inside_blocks():
        for allowed in (alone.sum, alone.collect, alone.start_sum, alone.start_scatter, alone.start_exchange):
            allowed(x, "mlp")
        with pytest.raises(
            CollectiveRefused, match="debug: no broadcast of \\[2\\] on group alone \\(1,\\) inside a block"
        ):
            alone.broadcast(x, source=1, what="debug")
        with pytest.raises(CollectiveRefused, match="no gather on group alone"):
            alone.gather(1, "debug")
    assert alone.broadcast(x, source=1, what="start") is x, "between calls it may"
