"""When a mesh is lost: what is sent again, what is given up, and that nothing is asked for twice. Meshes that
are fakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from millstream.core.envelope import Envelope
from millstream.core.errors import EnvelopeRefused, MeshError, MeshGivenUp, MeshLost
from millstream.engine.staggered import MeshBatch
from millstream.generation.answers import result_of
from millstream.mesh import recovery
from millstream.mesh.hang_report import KEPT_REPORTS, describe_rank, write_report
from millstream.mesh.link import LinkAnswer
from millstream.mesh.recovery import MAX_KILLED, MAX_LOSSES, MeshTransport
from millstream.wire.parcel import Delivery, Parcel, PendingDeliveries
from tests.unit.one_chunk import submit
from tests.unit.wire.test_wire import envelope


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSES_S", (0.0,) * MAX_LOSSES)


def parcel(session: str, call: int, **changes: Any) -> Parcel:
    return Parcel(
        envelope=envelope(session_id=session, call_id=call, **changes), latents_in=torch.zeros(1, 3, 4)
    )


class FakeLink:
    """Answers everything, until it is lost."""

    def __init__(self, *, dies_at: frozenset[int] = frozenset()) -> None:
        self.posted: list[list[Envelope]] = []
        self.told: list[tuple[str, str]] = []
        self.lost: MeshLost | None = None
        self.when_lost: Callable[[], None] = lambda: None
        self._dies_at = dies_at
        self._lost = False

    def post(self, parcels: list[Parcel]) -> Future[LinkAnswer]:
        self.posted.append([each.envelope for each in parcels])
        future: Future[LinkAnswer] = Future()
        self._lost = self._lost or any(each.envelope.call_id in self._dies_at for each in parcels)
        if self._lost:
            future.set_exception(MeshLost("rank 2 was killed"))
        else:
            deliveries = [Delivery(result=result_of(each.envelope)) for each in parcels]
            future.set_result(LinkAnswer(deliveries=deliveries, held_bytes=7))
        return future

    def tell(self, action: str, session_id: str = "", *, heard: bool = False) -> Future[LinkAnswer]:
        self.told.append((action, session_id))
        future: Future[LinkAnswer] = Future()
        future.set_result(LinkAnswer(deliveries=[], held_bytes=0))
        return future


class FakeMesh:
    def __init__(
        self, link: FakeLink, *, weights: bytes = b"w", starts: Callable[[], None] = lambda: None
    ) -> None:
        self.link = link
        self.wait = starts
        self.closed = False
        self._weights = weights

    def lose(self, lost: MeshLost) -> None:
        self.link.lost = lost

    def weights(self) -> bytes:
        return self._weights

    def close(self) -> None:
        self.closed = True


class FakeSession:
    def __init__(self, name: str) -> None:
        self.id = name

    def mend(self, parcel: Parcel) -> Parcel:
        whole = msgspec.structs.replace(parcel.envelope, init_cache=True)
        return Parcel(envelope=whole, latents_in=parcel.latents_in)


def transport(*links: FakeLink) -> tuple[MeshTransport, list[FakeMesh]]:
    meshes = [FakeMesh(link) for link in links]
    waiting = iter(meshes)
    made = MeshTransport(lambda: next(waiting))
    made.check()
    return made, meshes


def test_what_was_under_way_is_sent_again_and_only_the_first_of_a_session_brings_its_window() -> None:
    made, (first, second) = transport(FakeLink(dies_at=frozenset({2})), FakeLink())
    sessions = [FakeSession("a"), FakeSession("b")]
    for session in sessions:
        made.watch(session)
    flights = [made.post([parcel("a", 1)]), made.post([parcel("a", 2)]), made.post([parcel("a", 3)])]
    calls = [delivery.result.call_id for flight in flights for delivery in flight.result()]
    assert calls == [1, 2, 3]
    assert first.closed
    assert second.link.told == [("CHECK", "")]
    assert [(each.call_id, each.init_cache) for (each,) in second.link.posted] == [(2, True), (3, False)]
    submit(made, parcel("b", 4))
    submit(made, parcel("b", 5))
    assert [each.init_cache for (each,) in second.link.posted[2:]] == [True, False], (
        "one at rest brings its own later"
    )
    assert (made.recoveries, made.rebuilt) == (1, 2)


def test_a_chunk_that_brings_down_two_meshes_is_given_up_and_the_rest_goes_on() -> None:
    deadly = frozenset({2})
    made, meshes = transport(FakeLink(dies_at=deadly), FakeLink(dies_at=deadly), FakeLink())
    sessions = [FakeSession("a"), FakeSession("b")]
    for session in sessions:
        made.watch(session)
    bad = made.post([parcel("a", 2)])
    good = made.post([parcel("b", 3)])
    with pytest.raises(EnvelopeRefused, match="brought the mesh down twice: rank 2 was killed"):
        bad.result()
    assert [delivery.result.call_id for delivery in good.result()] == [3]
    assert [each.call_id for (each,) in meshes[2].link.posted] == [3]


def test_meshes_that_die_one_after_the_other_are_not_started_for_ever() -> None:
    made, meshes = transport(*(FakeLink(dies_at=frozenset(range(9))) for _ in range(MAX_LOSSES + 3)))
    with pytest.raises(EnvelopeRefused, match="twice"):
        submit(made, parcel("a", 1))
    for call in (2, 3):
        with pytest.raises(EnvelopeRefused, match="twice"):
            submit(made, parcel("b", call))
    with pytest.raises(MeshGivenUp, match=f"lost {MAX_LOSSES} times without a chunk in between"):
        submit(made, parcel("b", 4))
    assert sum(bool(mesh.link.posted) for mesh in meshes) <= MAX_LOSSES
    assert "lost 8 times" in made.trouble
    with pytest.raises(MeshGivenUp):
        submit(made, parcel("c", 9))


def test_losses_with_a_chunk_in_between_are_not_in_a_row() -> None:
    calls = range(1, MAX_LOSSES + 3)
    made, _ = transport(*(FakeLink(dies_at=frozenset({call})) for call in calls), FakeLink())
    assert [submit(made, parcel("a", call)).result.call_id for call in calls] == list(calls)
    assert made.recoveries == len(calls) > MAX_LOSSES


def killed() -> None:
    raise MeshLost("rank 2 was killed by SIGKILL", from_outside=True)


def test_a_mesh_that_is_lost_while_it_starts_is_started_again_and_the_chunk_is_not_blamed() -> None:
    starting = [FakeMesh(FakeLink(), starts=killed) for _ in range(3)]
    meshes = iter([FakeMesh(FakeLink(dies_at=frozenset({1}))), *starting, FakeMesh(FakeLink())])
    made = MeshTransport(lambda: next(meshes))
    made.check()
    assert submit(made, parcel("a", 1)).result.call_id == 1
    assert made.recoveries == 1
    assert all(mesh.closed and not mesh.link.posted for mesh in starting)
    assert made.trouble == ""


def test_a_chunk_whose_ranks_are_killed_from_outside_is_given_up_later() -> None:
    class Killed(FakeLink):
        def post(self, parcels: list[Parcel]) -> Future[LinkAnswer]:
            lost: Future[LinkAnswer] = Future()
            lost.set_exception(MeshLost("rank 1 was killed by SIGKILL", from_outside=True))
            return lost

    made, _ = transport(*(Killed() for _ in range(MAX_KILLED - 1)), FakeLink())
    assert submit(made, parcel("a", 1)).result.call_id == 1
    made, _ = transport(*(Killed() for _ in range(MAX_KILLED)), FakeLink())
    with pytest.raises(EnvelopeRefused, match=f"down {MAX_KILLED} times: rank 1 was killed"):
        submit(made, parcel("a", 1))


def test_a_mesh_at_rest_is_mended_before_a_chunk_needs_it_and_says_so_meanwhile() -> None:
    told = list[str]()
    made, (first, second) = transport(FakeLink(), FakeLink())
    second.wait = lambda: told.append(made.trouble)
    made.attend(lambda: told.append("lost"))
    first.lose(MeshLost("rank 1 was killed"))
    first.link.when_lost()
    made.mend()
    assert told == ["lost", "the mesh is being brought back: rank 1 was killed"]
    assert made.trouble == ""
    made.mend()
    assert made.recoveries == 1


def test_a_mesh_that_is_being_brought_back_is_let_go_of_when_the_server_closes() -> None:
    made, (first, second) = transport(FakeLink(), FakeLink())

    def closed_meanwhile() -> None:
        made.interrupt()
        assert second.link.lost is not None, "who waits for it is told"
        raise second.link.lost

    second.wait = closed_meanwhile
    first.lose(MeshLost("rank 1 was killed"))
    with pytest.raises(MeshGivenUp, match="because the server is being closed"):
        made.mend()
    assert second.closed


def test_a_sound_mesh_is_not_disturbed_by_a_server_that_closes() -> None:
    made, (first,) = transport(FakeLink())
    flight = made.post([parcel("a", 1)])
    made.interrupt()
    assert first.link.lost is None
    assert flight.result()[0].result.call_id == 1


def test_a_mesh_that_comes_back_with_other_weights_is_given_up() -> None:
    meshes = iter([FakeMesh(FakeLink(dies_at=frozenset({1}))), FakeMesh(FakeLink(), weights=b"other")])
    made = MeshTransport(lambda: next(meshes))
    made.check()
    with pytest.raises(MeshGivenUp, match="weights are not those"):
        submit(made, parcel("a", 1))
    assert made.weights() == b"w"


def test_a_mesh_that_stood_long_is_not_counted_with_the_ones_lost_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "STEADY_S", -1.0)
    made, meshes = transport(*(FakeLink() for _ in range(MAX_LOSSES + 3)))
    for mesh in meshes[:-1]:
        mesh.lose(MeshLost("rank 1 was killed"))
        made.mend()
    assert made.recoveries == MAX_LOSSES + 2


def test_before_the_ranks_were_checked_nothing_is_recovered() -> None:
    links = [FakeLink(dies_at=frozenset({1})), FakeLink()]
    waiting = iter(map(FakeMesh, links))
    made = MeshTransport(lambda: next(waiting))
    with pytest.raises(MeshError, match="rank 2 was killed"):
        submit(made, parcel("a", 1))
    assert links[1].posted == []


def test_a_released_session_is_not_mended() -> None:
    made, (_, second) = transport(FakeLink(dies_at=frozenset({1})), FakeLink())
    made.watch(gone := FakeSession("gone"))
    submit(made, parcel("a", 1))
    made.release("gone")
    assert ("RELEASE", "gone") in second.link.told
    del gone
    submit(made, parcel("gone", 2))
    assert not second.link.posted[-1][0].init_cache


class StaggeringLink(FakeLink):
    """Answers a staggered chunk when the next one comes, or with a flush."""

    def __init__(self, *, dies_at: frozenset[int] = frozenset()) -> None:
        super().__init__(dies_at=dies_at)
        self._open: list[Parcel] = []

    def post(self, parcels: list[Parcel]) -> Future[LinkAnswer]:
        begun = super().post(parcels)
        self._open += parcels
        return begun if begun.exception() else self._done(1)

    def tell(self, action: str, session_id: str = "", *, heard: bool = False) -> Future[LinkAnswer]:
        told = super().tell(action, session_id, heard=heard)
        return self._done(0) if action == "FLUSH" and not self._lost else told

    def _done(self, left: int) -> Future[LinkAnswer]:
        done = self._open[: len(self._open) - left]
        self._open = self._open[len(self._open) - left :]
        deliveries = [Delivery(result=result_of(each.envelope)) for each in done]
        future: Future[LinkAnswer] = Future()
        future.set_result(LinkAnswer(deliveries=deliveries, held_bytes=7))
        return future


def staggered(made: MeshTransport, session_id: str, *, calls: int, depth: int) -> list[int]:
    """Calls in the order of their results, each message sent before the answer of the one before is taken."""
    batch = MeshBatch(made, session_id, depth)
    flights = deque[PendingDeliveries]()
    found = list[int]()

    def land(left: int) -> None:
        while len(flights) > left:
            found.extend(delivery.result.call_id for delivery in flights.popleft().result())

    for call in range(1, calls + 1):
        flights.append(batch.post([parcel("a", call, under_way=depth, window=9)]))
        land(1)
    flights.append(batch.flush())
    land(0)
    return found


@pytest.mark.parametrize("dies_at", [2, 3, 4])
def test_staggered_chunks_that_were_answered_for_and_not_done_begin_again_and_each_comes_once(
    dies_at: int,
) -> None:
    made, (_, second) = transport(StaggeringLink(dies_at=frozenset({dies_at})), StaggeringLink())
    made.watch(session := FakeSession("a"))
    assert staggered(made, session.id, calls=4, depth=2) == [1, 2, 3, 4]
    resent = [each for posted in second.link.posted for each in posted]
    assert [each.call_id for each in resent] == list(range(dies_at - 1, 5)), (
        "one had been answered for, and was not done"
    )
    assert [each.init_cache for each in resent] == [True] + [False] * (len(resent) - 1)
    assert not made._staggered, "nothing is under way"


def test_a_mesh_that_is_lost_in_a_flush_is_given_the_chunks_and_told_to_flush_again() -> None:
    class DiesFlushing(StaggeringLink):
        def tell(self, action: str, session_id: str = "", *, heard: bool = False) -> Future[LinkAnswer]:
            if action != "FLUSH":
                return super().tell(action, session_id, heard=heard)
            lost: Future[LinkAnswer] = Future()
            lost.set_exception(MeshLost("rank 1 was killed"))
            return lost

    made, (_, second) = transport(DiesFlushing(), StaggeringLink())
    made.watch(session := FakeSession("a"))
    assert staggered(made, session.id, calls=2, depth=3) == [1, 2]
    assert [each.call_id for posted in second.link.posted for each in posted] == [2]
    assert second.link.told == [("CHECK", ""), ("FLUSH", "a")]


def test_reports_of_hangs_are_bounded_and_say_where_threads_stand(tmp_path: Path) -> None:
    for number in range(KEPT_REPORTS + 5):
        newest = write_report(tmp_path, f"reason {number}", {1: describe_rank(1, None, "INFER call 7")})
    assert len(list(tmp_path.iterdir())) == KEPT_REPORTS
    text = newest.read_text()
    assert text.startswith(f"reason {KEPT_REPORTS + 4}")
    assert "rank 1: INFER call 7" in text
    assert "no collective yet" in text
    assert "test_reports_of_hangs_are_bounded" in text, "the stack of this very thread"
