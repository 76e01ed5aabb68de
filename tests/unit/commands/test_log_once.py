"""Under torchrun all ranks meet the same mistake, and people read one line of it."""

from __future__ import annotations

import pytest
import typer
from torch.distributed import TCPStore

from millstream.commands.usage import plain_errors
from millstream.core.errors import ConfigError


def refuse(line: str, rank: int, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("RANK", str(rank))
    with pytest.raises(typer.Exit) as exited, plain_errors():
        raise ConfigError(line)
    assert exited.value.exit_code == 2, "each rank ends as one that was refused"


def test_whichever_rank_is_first_says_it_for_all(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    told = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(agent.port),
        "WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "none",
    }
    for name, value in {**told, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    for rank in (2, 0, 1, 3):
        refuse("batch is odd", rank, monkeypatch)
    refuse("only rank 3 has no GPU", 3, monkeypatch)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    refuse("batch is odd", 0, monkeypatch)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert said == ["error: batch is odd", "error: only rank 3 has no GPU", "error: batch is odd"]


def test_a_rank_that_nobody_answers_says_it_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    refuse("batch is odd", 1, monkeypatch)
    assert capsys.readouterr().err == "error: batch is odd\n"
