"""What is typed wrong is answered in one line that names the option and the fix."""

from __future__ import annotations

import pytest

from millstream.commands.main import app
from millstream.commands.usage import UsageError, in_plain_words, usage_line


def refused(line: str) -> str:
    with pytest.raises(UsageError) as error:
        app(line.split(), standalone_mode=False, prog_name="millstream")
    return usage_line(error.value)


@pytest.mark.parametrize(("line", "said"), [
    ("generate --prompt boat", 'No such option: --prompt; a prompt stands alone, in quotes: "a boat on the sea"'),
    ("generate a boat at sea",
     'Got unexpected extra argument(s) (boat at sea); a prompt stands alone, in quotes: "a boat on the sea"'),
    ("serve --modle brook", "No such option: --modle, did you mean --model?; see millstream serve --help"),
    ("plan --users 4", "No such option: --users; see millstream plan --help"),
    ("serve extra", "Got unexpected extra argument(s) (extra); see millstream serve --help"),
])  # fmt: skip
def test_what_nobody_knows_is_answered_with_what_was_meant(line: str, said: str) -> None:
    assert refused(line) == said


@pytest.mark.parametrize("line", [
    "serve --memory 10GB", "serve --port abc", "serve --port 99999", "generate x --seconds 5s", "generate x --compile maybe",
    "generate x --threads 0", "generate x --threads 99999999", "plan --sessions many", "doctor --port -1",
])  # fmt: skip
def test_a_value_of_another_kind_is_named_with_its_option(line: str) -> None:
    said = refused(line)
    option = line.split()[-2]
    assert said.startswith(f"Invalid value for '{option}': ")
    assert "\n" not in said


@pytest.mark.parametrize(("theirs", "ours"), [
    ("Input should be a valid number, unable to parse string as a number", "must be a number"),
    ("Input should be a valid integer, unable to parse string as an integer", "must be a whole number"),
    ("Input should be greater than or equal to 1", "must be at least 1"),
    ("Input should be less than or equal to 65535", "must be at most 65535"),
    ("Value error, 'maybe' is not one of 'off', 'eager'", "'maybe' is not one of 'off', 'eager'"),
    ("'abc' is not a valid float", "'abc' is not a valid float"),
])  # fmt: skip
def test_a_validators_words_become_plain_and_others_stay(theirs: str, ours: str) -> None:
    assert in_plain_words(theirs) == ours
