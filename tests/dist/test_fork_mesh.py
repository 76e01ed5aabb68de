"""Sessions are forked and rewound where their keys and values are spread over ranks."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from millstream.core.controls import SetPrompt
from millstream.core.envelope import instruction
from millstream.core.rewind import RewindConfig
from millstream.core.topology import FRONT, Topology
from millstream.mesh.worker import NO_ROOM, MeshRank
from millstream.parallel.groups import create_groups
from millstream.session.session import Session
from tests.dist.meshes import SMALL, mesh_engine
from tests.dist.ranks import run_ranks
from tests.dist.streams import spread_engine


def test_a_branch_on_a_mesh_has_its_parents_bits_and_a_way_of_its_own() -> None:
    with mesh_engine("front+tp2", rewind=RewindConfig(states=2, every=2)) as engine:
        session = engine.session("sea", **SMALL)
        digests = [chunk.digest for chunk in session.stream(4)]
        earlier = session.fork(3)
        now = session.fork()
        assert [chunk.digest for chunk in earlier.stream(1)] == digests[3:]
        now.control(SetPrompt(prompt="storm", mode="cut"))
        (other,), (next_one,) = now.stream(1), session.stream(1)
        assert other.digest != next_one.digest
        assert session.rewind(4).exact
        assert [chunk.digest for chunk in session.stream(1)] == [next_one.digest]


def fork_where_one_rank_is_full(rank: int, name: str) -> list[str] | None:
    """Return what a rank answers about a branch that the second has no room for, of one whose pages it has no
    room to write, and of the session that both come from."""
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=60)
        return None
    here, groups = spread_engine(topology, rank)
    member = MeshRank(here.generator, groups, SimpleNamespace(busy=nullcontext), check=lambda _: None)  # type: ignore[arg-type]
    parent = here.session("sea", session_id="a", **SMALL)
    branch = "b"
    said = list[str]()
    pages = here.generator.pages

    def chunk(session: Session) -> str:
        plan = session.decide()
        assert plan is not None
        (delivery,) = member.run(
            [session.prepare(plan)]
        )  # as a worker does what the leader has found nothing wrong with
        session.receive(delivery) if delivery.result.ok else None
        return delivery.result.error or "made"

    said.append(chunk(parent))
    pages.capacity_bytes = 0 if rank == 2 else None
    member.obey(instruction("FORK", 2, "a", fork_id=branch))
    said += ["forked" if branch in here.generator.caches else "no branch"]
    member.obey(instruction("FORK", 3, branch, fork_id="c"))
    pages.capacity_bytes = None
    with here.session("sea", session_id=branch, **SMALL) as stranded:
        stranded.resume(parent.state())
        said.append(member.refusal(stranded.prepare(stranded.decide())))  # type: ignore[arg-type]
    member.obey(instruction("RELEASE", 4, branch))
    member.obey(instruction("FORK", 5, "a", fork_id=branch))
    pages.capacity_bytes = pages.promised_bytes if rank == 2 else None
    stranded = here.session("sea", session_id=branch, **SMALL)
    stranded.resume(parent.state())
    said += [chunk(stranded), "gone" if branch not in here.generator.caches else "kept", chunk(parent)]
    return said


def test_a_branch_that_one_rank_has_no_room_for_is_refused_on_all_and_its_parent_goes_on() -> None:
    _, *ranks = run_ranks(fork_where_one_rank_is_full, 3, "front+tp2")
    for said in ranks:
        made, forked, refused, short, after, parent = said
        assert (made, forked, short, after, parent) == ("made", "no branch", NO_ROOM, "gone", "made")
        assert "end a branch or choose a smaller window or size" in refused
        assert "\n" not in refused
