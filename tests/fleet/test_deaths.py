"""A replica that is killed: its session comes back elsewhere to the same bits, with every control that was
acknowledged."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millstream.client.sync_client import connect
from millstream.core.client_messages import Ask
from millstream.core.controls import SetPrompt
from millstream.fleet.local_fleet import TINY, LocalReplicas, local_fleet
from tests.fleet.playing import digests, small_fleet
from tests.server.serving import wait_until
from tests.soak.keep_kills import TOML, Witness, of_a_fleet, replayed

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
                storm = client.steer(
                    SetPrompt(prompt="a storm"), at_chunk=8
                )  # after the last state that is kept
                fleet.show()
                doomed.kill(name)
                seen |= digests(client, 7)
                assert client.applied(storm).chunk_index == 8
                assert any("the session goes on at chunk" in note for note in client.notes), client.notes
                assert fleet.place_of(live.session) == "tiny-b"
        finally:
            doomed.close()
        with connect(fleet.url, format="raw") as still:
            still.start(SEA)
            still.steer(SetPrompt(prompt="a storm"), at_chunk=8)
            expected = digests(still, 11)
    assert seen == expected, "none twice, none missing, and all the same"


@pytest.mark.slow
def test_what_is_said_while_a_session_comes_back_applies_after_what_was_shown_in_the_order_it_was_said(
    tmp_path: Path,
) -> None:
    people = [Witness(number) for number in range(2)]
    with local_fleet(TOML, tmp_path, options=(*TINY, "--size", "32x32")) as here:
        asyncio.run(of_a_fleet(here, people, 2, random.Random(3)))
    assert [each.judge() for each in people] == [[], []]
    folders = [path for path in tmp_path.glob("tiny-*") if path.is_dir()]
    again = replayed(folders, people)
    assert again.seen > sum(len(each.shown) for each in people), "some were made twice"
    assert (again.digests_differing, again.frames_differing) == (0, 0)
