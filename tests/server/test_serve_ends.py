"""However a server ends, everybody is told, no process is left as a shell, and its exit code says which it
was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from websockets.sync.client import connect

from tests.server.serving import START, wait_until
from tests.server.test_serve import PATIENCE_S, TINY, is_ready

FAILS = """
from millstream.serving.session_table import SessionTable

def arrived(places, pending):
    raise AssertionError(f"session {pending.session.id} is in no state that there is")

SessionTable.arrived = arrived
"""
NEVER_ENDS = """
import time
from millstream.models.dit import CausalDiT
from millstream.serving.service import Service

forward = CausalDiT.forward

def slowly(dit, *arguments, **options):
    if Service.serves:
        time.sleep(1000)
    return forward(dit, *arguments, **options)

CausalDiT.forward, Service.serves = slowly, False
opened = Service.open

def open(service, *arguments):
    Service.serves = True
    return opened(service, *arguments)

Service.open = open
"""
DISK_HANGS = """
import time
from millstream.commands import serve
from millstream.server.sessions.archive import SessionJournal

serve.LAST_S = 1.0
SessionJournal.finish = lambda journal: time.sleep(1000)
"""
RUN = "\nfrom millstream.commands.main import main\nmain()\n"


def serve_and_start(spoilt: str, data: Path, *, then: signal.Signals | None) -> tuple[int, str, list[dict]]:
    """Exit code, what it logged, and what a client heard who had started a session."""
    words = [
        sys.executable,
        "-c",
        spoilt + RUN,
        "serve",
        *TINY,
        "--grace",
        "2",
        "--port",
        "0",
        "--data",
        str(data),
    ]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip()
            wait_until(lambda: is_ready(address), "it is ready")
            heard = list[dict]()
            with connect(address.replace("http", "ws") + "/v1/stream", open_timeout=PATIENCE_S) as client:
                client.send(json.dumps(START))
                for message in client:
                    heard.append(json.loads(message) if isinstance(message, str) else {"type": "chunk"})
                    if heard[-1]["type"] == "live" and then is not None:
                        running.send_signal(then)
            return running.wait(PATIENCE_S), running.communicate()[1], heard
        finally:
            running.kill()


def test_an_engine_that_fails_ends_its_process_and_a_call_or_a_disk_that_hangs_does_not_keep_it(
    tmp_path: Path,
) -> None:
    with ThreadPoolExecutor(3) as all_three:
        failing = all_three.submit(serve_and_start, FAILS, tmp_path / "fails", then=None)
        stuck = all_three.submit(serve_and_start, NEVER_ENDS, tmp_path / "stuck", then=signal.SIGTERM)
        hanging = all_three.submit(serve_and_start, DISK_HANGS, tmp_path / "hangs", then=signal.SIGTERM)
        code, log, heard = failing.result()
        session = next(message["session"] for message in heard if message["type"] == "live")
        assert code == 2
        assert (
            log.strip().splitlines()[-1].startswith("error: the engine has failed and all clients were told")
        )
        assert (heard[-1]["type"], heard[-1]["cause"]) == ("ended", "failed")
        assert session not in heard[-1]["reason"]
        code, log, heard = stuck.result()
        assert (code, "Traceback" in log) == (0, False), log
        assert (heard[-1]["type"], heard[-1]["reason"]) == ("ended", "the server is shutting down")
        code, log, heard = hanging.result()
        assert (code, "in <lambda>" in log) == (1, True), log
        assert (heard[-1]["type"], heard[-1]["reason"]) == ("ended", "the server is shutting down")
