"""Breaks the code in one place at a time and runs the test that should notice: `make mutants`.

    python -m tests.run_mutants                      # all of tests/mutants.py
    python -m tests.run_mutants wire "KL penalty"    # rooms and mutants with one of these in their name

Works on temporary copies of the tree, two at once, and never writes into the checkout. Every named test must
first pass on an unbroken copy. A snippet that does not occur exactly once counts as a failure, as does a
mutant that survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
AT_ONCE = 2
TIMEOUT_S = 300.0
"""For the tests of one mutant; a mutant that hangs is caught by it."""
BASELINE_TIMEOUT_S = 1800.0
TESTS_FAILED = 1
"""Pytest's exit status; any other but 0 says that no test could be run."""


class DoesNotApply(Exception):
    """A snippet that occurs never or more than once."""


class Run(NamedTuple):
    status: int | None
    """None where the time was up."""
    output: str


class Result(NamedTuple):
    mutant: Mutant
    verdict: str
    """caught, caught (time was up), survived, or what is wrong."""
    seconds: float

    @property
    def is_caught(self) -> bool:
        return self.verdict.startswith("caught")


def mutated(source: str, mutant: Mutant) -> str:
    """The file's text with the one occurrence of the snippet replaced."""
    count = source.count(mutant.find)
    if count != 1:
        raise DoesNotApply(f"the snippet occurs {count} times in {mutant.file}")
    return source.replace(mutant.find, mutant.replace)


def copy_tree(root: Path, target: Path) -> Path:
    """All files that git tracks or would, so neither environments nor build outputs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target / name)
    return target


def run_tests(tree: Path, tests: Sequence[str], timeout_s: float, *options: str) -> Run:
    """Run tests in a copied tree, whose own modules come before installed ones."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *options, *tests]
    with tempfile.TemporaryFile("w+") as output:  # a process that a test leaves behind would hold a pipe open
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment | {"PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_group(process)
        output.seek(0)
        return Run(status, output.read())


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever a test has left behind, ranks of a mesh among them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _broken(tree: Path, mutant: Mutant) -> Iterator[None]:
    """A copy with the mutant in it, which is as it was afterwards."""
    path = tree / mutant.file
    source = path.read_text()
    changed = mutated(source, mutant)
    try:
        _write(path, changed)
        yield
    finally:
        _write(path, source)


def _write(path: Path, source: str) -> None:
    """Leave no bytecode: it would pass for a mutant of the same size, written within the same second."""
    path.write_text(source)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def try_mutant(tree: Path, mutant: Mutant) -> Result:
    """Run its test on a copy that has it."""
    begun = time.monotonic()
    try:
        with _broken(tree, mutant):
            run = run_tests(tree, [mutant.test_name], TIMEOUT_S, "-x")
    except (DoesNotApply, FileNotFoundError) as error:
        return Result(mutant, f"does not apply: {error}", 0.0)
    verdicts = {None: "caught (time was up)", 0: "survived", TESTS_FAILED: "caught"}
    nothing = f"no test ran (pytest ended with {run.status}): {_last_line(run.output)}"
    verdict = verdicts.get(run.status, nothing)
    return Result(mutant, verdict, time.monotonic() - begun)


def failing(tree: Path, tests: Sequence[str]) -> str:
    """Say what pytest says where these do not all pass on an unbroken copy; nothing if they do."""
    run = run_tests(tree, tests, BASELINE_TIMEOUT_S) if tests else Run(0, "")
    if run.status == 0:
        return ""
    late = f"\nthey take longer than {BASELINE_TIMEOUT_S:g} s" if run.status is None else ""
    return run.output[-6000:] + late


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "it said nothing")


def chosen(words: Sequence[str]) -> list[Mutant]:
    return [
        mutant
        for room, mutants in MUTANTS.items()
        for mutant in mutants
        if not words or any(word.lower() in f"{room} {mutant.name}".lower() for word in words)
    ]


def run_all(mutants: Sequence[Mutant], root: Path = ROOT) -> list[Result]:
    """Run the tests unbroken, then try each mutant by itself. Raises where a test fails unbroken."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        folders = [tempfile.TemporaryDirectory(prefix="mutants-") for _ in range(AT_ONCE)]
        trees = [copy_tree(root, Path(stack.enter_context(folder)).resolve()) for folder in folders]
        tests = sorted({mutant.test_name for mutant in mutants})
        shares = [tests[number::AT_ONCE] for number in range(AT_ONCE)]
        broken = "".join(pool.map(failing, trees, shares))
        if broken:
            raise SystemExit(f"{broken}\nthese tests fail without any mutant: mend them first")
        free = SimpleQueue[Path]()
        for tree in trees:
            free.put(tree)

        def try_one(mutant: Mutant) -> Result:
            tree = free.get()
            try:
                result = try_mutant(tree, mutant)
            finally:
                free.put(tree)
            print(f"{result.seconds:5.1f} s  {result.verdict:10}  {mutant.name}", flush=True)
            return result

        return list(pool.map(try_one, mutants))


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("words", nargs="*", help="rooms or mutants by a part of their name; none: all")
    mutants = chosen(parser.parse_args().words)
    begun = time.monotonic()
    if not mutants:
        sys.exit("no mutant has that in its name; see tests/mutants.py")
    print(f"{len(mutants)} mutants; their tests run unbroken first", flush=True)
    results = run_all(mutants)
    missed = [result for result in results if not result.is_caught]
    print()
    for result in results:
        mark = "  " if result.is_caught else "->"
        print(f"{mark} {result.verdict:10}  {result.mutant.name:60}  {result.mutant.test_name}")
    minutes = (time.monotonic() - begun) / 60
    print(f"\n{len(results) - len(missed)} of {len(results)} caught in {minutes:.1f} minutes")
    sys.exit(f"not caught: {'; '.join(result.mutant.name for result in missed)}" if missed else 0)


if __name__ == "__main__":
    main()
