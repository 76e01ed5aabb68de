"""Deadlock and desync on purpose, in a mesh that was sound when it began: each is named within its time
limit, by the call, the ranks and the shapes, and the stream goes on.

One engine for all: every failure ends a mesh, and the next one meets that which came after it. What is found
at the start is in `test_contract_ranks.py`: among it a rank that compiles differently (C-01 to C-05), and
collectives that part ways while a mesh warms up (OM-05). Ranks that are slow by themselves while they train
are in `test_stragglers.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from torch._C import _distributed_c10d

from millstream.engine.engine import Engine
from tests.dist import broken
from tests.dist.meshes import LIMITS, SMALL, mesh_engine

pytestmark = pytest.mark.slow

HANG = replace(LIMITS, hang_s=2.0, window_s=2.0)
BACK_S = 60.0
"""For another mesh and the chunks, on a machine that others use."""
WAITING = r"rank 1 is in collect \(digests of inputs\) of \[3\] on cpu, collective \d+ of group mesh \(1, 2\)"
FAILURES = {
    "wrong group": r"rank 2: debug: no sum of \[2, 3\] on group world \(1, 2\): the group is for start-up",
    "wrong device": r"rank 2: debug: no sum of \[2, 3\] on group mesh \(1, 2\): the tensor is on meta",
    "wrong shape": r"rank 1 was ended by SIGABRT, as gloo does when .* kinds or shapes; "
    r"rank 2 is in sum \(first\) of \[4, 3\] on cpu, collective \d+ of group stage0 \(1, 2\)",
    "wrong order": r"ranks \(1, 2\) have called different collectives on stage0 since .*"
    r"group stage0 \(1, 2\), collective \d+: ranks called different things: "
    r"rank 1 sum \(first\) of \[2, 3\] on cpu; rank 2 sum \(second\) of \[2, 3\] on cpu",
    "slow": rf"the mesh has not answered for 2 s; {WAITING}; rank 2 never came",
    "dies in a collective": rf"rank 2 was killed by SIGKILL; {WAITING}",
    "stopped": rf"rank 2 has been silent for 2 s; {WAITING}",
}


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def engine(marks: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # gloo's own flight recorder, in the ranks
        patch.chdir(marks)
        with mesh_engine(run=partial(broken.fails_once, marks=marks), limits=HANG) as engine:
            yield engine


@pytest.mark.parametrize(
    "failure", [pytest.param(each, id="om_05" if each == "wrong order" else each) for each in FAILURES]
)
def test_a_mesh_that_was_sound_and_fails_is_named_in_time_and_the_stream_goes_on(
    failure: str, engine: Engine, marks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (marks / failure).touch()
    begun = time.monotonic()
    with engine.session("sea", **SMALL, session_id=failure) as session:
        assert [chunk.index for chunk in session.stream(4)] == [0, 1, 2, 3]
    assert time.monotonic() - begun < HANG.hang_s + BACK_S
    assert not (marks / failure).exists(), "it has failed"
    (said,) = [
        record.getMessage() for record in caplog.records if "the mesh is back after" in record.getMessage()
    ]
    assert re.search(FAILURES[failure], said), said
    assert len(said.splitlines()) == 1


@pytest.mark.skipif(
    not hasattr(_distributed_c10d, "_dump_fr_trace_json"), reason="this torch has no flight recorder for gloo"
)
def test_the_report_of_a_hang_says_what_torchs_flight_recorder_says(engine: Engine, marks: Path) -> None:
    reports = [path.read_text() for path in sorted((marks / "out/hangs").iterdir())]
    assert len(reports) == 2, "slow, and stopped"
    assert re.search(
        r"flight recorder: rank 1 is in gloo:\w+ \[\[3\]\], collective \d+ of group \w+", reports[0]
    ), reports[0]
    assert "time.sleep(3600)" in reports[0], "the stack of the one that is slow"
    assert "rank 2, when last heard" in reports[1]
