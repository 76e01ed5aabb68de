"""A replica that is killed: its session comes back elsewhere to the same bits, with every control that was acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.local_fleet import TINY, LocalReplicas
from millstream.client.sync_client import connect
from millstream.core.client_messages import Ask
from millstream.core.controls import SetPrompt
from tests.fleet.playing import digests, small_fleet
from tests.server.serving import wait_until

SEA = Ask(prompt="sea", fps=24.0, seed=5, size="16x32")


@pytest.mark.slow
def test_the_session_of_a_killed_replica_goes_on_elsewhere_to_the_same_bits(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ("tiny-b",), keep=3, late=True, places=10**7) as fleet:
        doomed = LocalReplicas(fleet.running.fleet.config, fleet.secret, tmp_path, TINY)
        try:
            asyncio.run(doomed.start("tiny", ""))
            fleet.threads.addresses += asyncio.run(doomed.running())
            (name,) = doomed.urls
            wait_until(lambda: fleet.running.ready == [name], "it is ready", patience_s=120)
            with connect(fleet.url, format="raw") as client:
                live = client.start(SEA)
                assert fleet.place_of(live.session) == name
                seen = digests(client, 4)
                storm = client.steer(SetPrompt(prompt="a storm"), at_chunk=8)  # after the last state that is kept
                fleet.show()
                doomed.kill(name)
                seen |= digests(client, 7)
                assert client.applied(storm).chunk_index == 8
                assert any("goes on elsewhere from chunk" in note for note in client.notes), client.notes
                assert fleet.place_of(live.session) == "tiny-b"
        finally:
            doomed.close()
        with connect(fleet.url, format="raw") as still:
            still.start(SEA)
            still.steer(SetPrompt(prompt="a storm"), at_chunk=8)
            expected = digests(still, 11)
    assert seen == expected, "none twice, none missing, and all the same"
