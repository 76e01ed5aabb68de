"""Sessions are forked and rewound where their keys and values are spread over ranks."""

from __future__ import annotations

from millstream.core.controls import SetPrompt
from millstream.core.rewind import RewindConfig
from tests.dist.meshes import SMALL, mesh_engine


def test_a_branch_on_a_mesh_has_its_parents_bits_and_a_way_of_its_own() -> None:
    with mesh_engine("front+tp2", rewind=RewindConfig(states=2, every=2)) as engine:
        session = engine.session("sea", **SMALL)
        digests = [chunk.digest for chunk in session.stream(4)]
        earlier, now = session.fork(3), session.fork()
        assert [chunk.digest for chunk in earlier.stream(1)] == digests[3:]
        now.control(SetPrompt(prompt="storm", mode="cut"))
        (other,), (next_one,) = now.stream(1), session.stream(1)
        assert other.digest != next_one.digest
        assert session.rewind(4).exact
        assert [chunk.digest for chunk in session.stream(1)] == [next_one.digest]
