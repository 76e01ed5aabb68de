"""`serve --config`: what is in the file is as if it had been typed, and what is wrong is one line that says
where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

import millstream.server.app  # noqa: F401  (what it imports starts a process, which no quick test may)
from millstream.commands.main import app
from millstream.commands.serve import ServeOptions
from millstream.core.config import StreamConfig
from millstream.server.access.keys import Keyring

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
EXAMPLE, KEYS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SECRET = "hidden-in-the-file"


class Asked(NamedTuple):
    options: ServeOptions
    stream: StreamConfig | None
    keyring: Keyring | None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What a server was asked to be, instead of one."""
    asked: list[Asked] = []
    monkeypatch.setattr("millstream.commands.serve.run_server", lambda *what: asked.append(Asked(*what)))
    return asked


def run(folder: Path, text: str, *options: str, **environment: str) -> str:
    """What is said."""
    (folder / "serve.toml").write_text(text)
    done = CliRunner().invoke(
        app, ["serve", "--config", str(folder / "serve.toml"), *options], env=environment
    )
    assert done.exit_code == (2 if done.output else 0), done.output
    return done.output.replace(f"{folder}/", "").strip()


def test_the_example_of_the_page_is_read(tmp_path: Path, requests: list[Asked]) -> None:
    assert run(tmp_path, EXAMPLE) == ""
    ((options, _, _),) = requests
    assert (options.session_fps(), options.window, options.allow_origin) == (
        12.0,
        12,
        ["https://example.org"],
    )


def samples() -> dict[str, str]:
    """A value of the type that the page's tables name, for each key."""
    rows = re.findall(r"^\| `--([a-z-]+)`[^|]* \| ([^|]+) \| ([^|]*)\|", PAGE, re.MULTILINE)
    values = {
        "text": '"text"',
        "number": "1",
        "number or text": "1",
        "`true` or `false`": "true",
        "list of texts": '["text"]',
    }
    return {name: values.get(kind.strip()) or kind.split("`")[1] for name, kind, _ in rows}


def test_every_key_of_the_pages_tables_is_taken_with_a_value_of_its_type(
    tmp_path: Path, requests: list[Asked]
) -> None:
    command: Any = typer.main.get_command(app)
    options = {each.name.replace("_", "-") for each in command.commands["serve"].params}
    assert set(samples()) == options - {"config"}
    for name, value in samples().items():
        said = run(tmp_path, f"{name} = {value}")
        assert name == "plan" or said == "", f"{name}: {said}"


def test_the_keys_of_the_page_are_keys(tmp_path: Path, requests: list[Asked]) -> None:
    (tmp_path / "studio").write_text("the-key-of-the-studio\n")
    text = KEYS.replace("/run/secrets", str(tmp_path))
    assert run(tmp_path, text, VISITORS_KEY="the-key-of-visitors", WALL_KEY="the-key-of-the-wall") == ""
    keyring = requests[0].keyring
    assert keyring is not None
    assert keyring.names == ["studio", "visitors", "wall"]
    visitors = keyring.find(["the-key-of-visitors"])
    assert visitors is not None
    assert (visitors.max_sessions, visitors.max_fps, visitors.weight, visitors.max_snapshots) == (
        2,
        12,
        0.5,
        10,
    )


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, requests: list[Asked]
) -> None:
    text = f'port = 1111\napi-key = "{SECRET}"\nweights = ["a", "b"]\nmax_waiting = 3\nlog-json = true\nfps = 12\n'
    assert (
        run(tmp_path, text, "--port", "2222", "--weights", "random", MILLSTREAM_API_KEY="of-the-environment")
        == ""
    )
    ((options, _, _),) = requests
    assert (options.port, options.weights, options.max_waiting) == (2222, ["random"], 3)
    assert (options.api_key, options.log_json, options.session_fps()) == ("of-the-environment", True, 12.0)


@pytest.mark.parametrize(("text", "said"), [
    ("prot = 8000", "line 1, prot: no such field; did you mean port?"),
    ("batch = 0", "line 1, batch: must be at least 1"),
    ("\n# port\nmax_life = true", "line 3, max_life: expected `float`, got `bool`"),
    ('port = "8000"', "line 1, port: expected `int`, got `str`"),
    ("model = 5", "line 1, model: expected `str`, got `int`"),
    ('weights = "random"', "line 1, weights: expected `array`, got `str`"),
    ('compile = "fast"', "line 1, compile: 'fast' is not one of 'off', 'inductor', 'aot_eager', 'eager'."),
    ('steps = """\nport = 5"""\nidle = "long"', "line 3, idle: expected `float`, got `str`"),
    ('dtype = "fp32"\nprecision = "bf16"', "line 2, precision: dtype says the same; leave one of them out"),
    ("config = 'other.toml'", "line 1, config: no such field"),
    ("[doors]\nport = 1", "line 1, doors: no such table; options stand above all tables"),
    ("port = 0\ndata = ''", "line 2, data: it is empty, and names a file or folder"),
    ("tls-key = ''", "line 1, tls-key: it is empty, and names a file or folder"),
    (f"[keys.a]\nkey = '{SECRET}'\nread-only = true", "line 1, keys: all are read-only, so no client could open "
                                                      "a session; "
     "add one that is not"),
    ("[keys.a]\nkey = 12345678", "line 2, keys.a.key: expected `str`, got `int`"),
    (f"[keys.a]\nkey = '{SECRET}'\nmax-sesions = 2", "line 3, keys.a.max-sesions: no such field; did you "
                                                     "mean max-sessions?"),
    (f"[keys.a]\nkey = '{SECRET}'\nmax-fps = nan", "line 3, keys.a.max-fps: expected `float` >= 0.1"),
    (f"[keys.a]\nkey = '{SECRET}'\n[keys.b]\nkey = '{SECRET}'",
     "line 3, keys.b: this is the key of 'a' too; give each its own"),
    ("[keys]", "line 1, keys: there are none; add one as [keys.NAME]"),
    ("[keys]\na = 3", "line 1, keys: expected `table`, got `int`"),
])  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_place(
    tmp_path: Path, requests: list[Asked], text: str, said: str
) -> None:
    assert run(tmp_path, text) == f"error: serve.toml {said}"
    assert requests == []
    assert SECRET not in said


@pytest.mark.parametrize(("text", "place"), [
    ("port = 1\nidle = 2\nport = 3", "line 3: "), ("idle = 2\nweights = [\n1,", "line 2: "), ("host = x", "line 1: "),
    ("idle = 2\nport = 99999", "line 2, port: "),
])  # fmt: skip
def test_what_the_parser_or_typer_refuses_has_its_place_too(tmp_path: Path, text: str, place: str) -> None:
    said = run(tmp_path, text)
    assert said.startswith(f"error: serve.toml {place}")
    assert "\n" not in said


@pytest.mark.parametrize("fps", ["0", "-3", "10000", "nan", "inf", '"fast"'])
def test_a_rate_that_cannot_be_is_one_line_in_the_file_and_typed(
    tmp_path: Path, requests: list[Asked], fps: str
) -> None:
    wrong = f"--fps must be auto or between 0.1 and 240, got {fps.strip(chr(34))}"
    assert run(tmp_path, f"port = 0\nfps = {fps}") == f"error: serve.toml line 2, fps: {wrong}"
    assert run(tmp_path, "fps = 24", "--fps", fps.strip('"')) == f"error: {wrong}", (
        "the file has no part in it"
    )
    assert requests == []


@pytest.mark.parametrize(("text", "places"), [
    ("plan = 'plan.json'\nport = 0\nmodel = 'wan-tiny'", "line 1, plan; line 3, model: --plan says"),
    ("tls-cert = 'own.pem'", "line 1, tls-cert: --tls-cert needs --tls-key beside it"),
    ("port = 0\nhost = '0.0.0.0'", "line 2, host: others can reach --host 0.0.0.0"),
    (f"api-key = '{SECRET}'\n[keys.a]\nkey = 'another-key'", "line 1, api-key: --api-key is one for "
                                                             "everybody"),
    ("port = 0\nwindow = 1", "line 2, window: window 1 with sink 0 cannot hold"),
    ("window = 6\nport = 0\nsink = 9", "line 1, window; line 3, sink: window 6 with sink 9 cannot hold a "
                                       "chunk of 3"),
    ("fps = 1\nlead = 3.0", "line 2, lead: --lead: a lead of 3 s leaves no time"),
    (f"osc = 9000\n[keys.a]\nkey = '{SECRET}'", "line 1, osc: --osc steers sessions without a key's name"),
    ("api-key = 'abc'", "line 1, api-key: --api-key, or MILLSTREAM_API_KEY: an API key must have 8 to 256 "
                        "letters"),
    ("experimental = true\nexchange-groups = 2", "line 2, exchange-groups: local exchanges no heads"),
])  # fmt: skip
def test_fields_that_contradict_each_other_are_named_with_their_lines(
    tmp_path: Path, text: str, places: str
) -> None:
    said = run(tmp_path, text)
    assert said.startswith(f"error: serve.toml {places}")
    assert "\n" not in said
    assert SECRET not in said


@pytest.mark.parametrize(("text", "said"), [
    ("share = 2.0", "line 2, share: --share must be above 0 and at most 1, got 2"),
    ("share = nan", "line 2, share: --share must be above 0 and at most 1, got nan"),
    ("memory = nan", "line 2, memory: --memory must be above 0, got nan"),
    ("memory = 0", "line 2, memory: --memory must be above 0, got 0"),
    ("memory = inf", "line 2, memory: --memory must be above 0, got inf"),
    ("memory = 1e9", "line 2, memory: --memory 1e+09 GiB is more than cpu has, which is "),
    ("grace = 0", "line 2, grace: --grace must be seconds above 0 that have an end, got 0"),
    ("grace = inf", "line 2, grace: --grace must be seconds above 0 that have an end, got inf"),
    ("lead = 1000", "line 2, lead: --lead may be 60 seconds at most, got 1000"),
    ("mesh-limits = 'start=900'", "line 2, mesh-limits: --mesh-limits are of the ranks of a mesh, and local "
                                  "has none"),
    ("longest-chunk = -1", "line 2, longest-chunk: --longest-chunk must be above 0, got -1"),
    ("lead = nan", "line 2, lead: --lead must be above 0, got nan"),
    ("idle = nan", "line 2, idle: --idle must be above 0 seconds, got nan"),
    ("abandon = -1", "line 2, abandon: --abandon must be above 0 seconds, got -1"),
    ("max_life = 0", "line 2, max_life: --max-life must be above 0 seconds, got 0"),
    ("rewind-memory = inf", "line 2, rewind-memory: --rewind-memory is GiB for one session's states, got inf"),
    ("sink = -1", "line 2, sink: sink must be 0 or more, got -1"),
    ("model = 'brok'", "line 2, model: 'brok' is not registered; known: "),
    ("device = 'cuda:99'", "line 2, device: device 'cuda:99' is not here: "),
    ("steps = '1000,x'", "line 2, steps: expected numbers with commas between them"),
    ("mesh-limits = 'begin=1'", "line 2, mesh-limits: --mesh-limits are seconds of "),
    ("mesh-limits = 'start=-1'", "line 2, mesh-limits: --mesh-limits must be above 0"),
    ("source = ['a=none.mp4']", "line 2, source: --source a: none.mp4 is not there"),
])  # fmt: skip
def test_what_no_server_could_do_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("it is loaded")

    monkeypatch.setattr("millstream.commands.engine_from_options.load_engine", load)
    told = run(tmp_path, f"port = 0\n{text}\ndata = '{tmp_path}/data'")
    assert told.startswith(f"error: serve.toml {said}")
    assert "\n" not in told


@pytest.mark.parametrize("field", ["weights", "lora"])
def test_a_file_that_is_not_there_is_said_with_the_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr("millstream.server.logs.set_up_logging", lambda **_: None)
    said = run(tmp_path, f"port = 0\n{field} = ['none.pth']\ndata = '{tmp_path}/data'")
    assert said.startswith(f"error: serve.toml line 2, {field}: none.pth ")
    assert "\n" not in said


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 100)
    (tmp_path / "long.toml").write_text("# much\n" * 20_000)
    for name, why in (
        ("none.toml", "No such file"),
        ("", "Is a directory"),
        ("weights.bin", "not text"),
        ("long.toml", "more than"),
    ):
        done = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / name)])
        assert done.exit_code == 2
        (line,) = done.output.strip().splitlines()
        assert why in line
