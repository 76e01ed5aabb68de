"""Errors as one line that names the fix: our own, and in our words those of Typer.

Typer's words differ by version: a message that is not known stays as it is.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import typer

from millstream.core.errors import MillstreamError

UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Typer has a Click of its own or needs one, by its version, and no name for this class of it."""

PLAIN = (
    (r"Value error, ", ""),
    (r"Input should be a valid number\b.*", "must be a number"),
    (r"Input should be a valid integer\b.*", "must be a whole number"),
    (r"Input should be greater than or equal to ", "must be at least "),
    (r"Input should be less than or equal to ", "must be at most "),
)
IS_CLOSE = 0.8
"""A share of letters; Typer's own guesses include everything that has a letter or two in common."""
QUOTES = 'a prompt stands alone, in quotes: "a boat on the sea"'


def in_plain_words(message: str) -> str:
    for theirs, ours in PLAIN:
        message = re.sub(theirs, ours, message)
    return message


def usage_line(error: typer.BadParameter) -> str:
    """Empty where a command without arguments has shown its help."""
    message = in_plain_words(error.format_message()).rstrip(".")
    option: str = getattr(error, "option_name", "")
    if option and message.startswith("No such option"):
        message = f"No such option: {option}" + _did_you_mean(
            option, getattr(error, "possibilities", None) or ()
        )
    if not message or error.ctx is None:
        return message
    takes_prompt = any(param.name == "prompt" for param in error.ctx.command.params)
    if takes_prompt and (option == "--prompt" or "unexpected extra argument" in message):
        return f"{message}; {QUOTES}"
    return f"{message}; see {error.ctx.command_path} --help"


def _did_you_mean(option: str, possibilities: Sequence[str]) -> str:
    close = difflib.get_close_matches(option, possibilities, n=1, cutoff=IS_CLOSE)
    return f", did you mean {close[0]}?" if close else ""


@contextmanager
def plain_errors() -> Iterator[None]:
    """One line and an exit code for what a person can mend; anything else is a bug and keeps its
    traceback."""
    try:
        yield
    except MillstreamError as error:
        if _is_mine_to_say(str(error)):
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as interrupt:
        typer.echo(str(interrupt) or "stopped", err=True)
        raise typer.Exit(130) from None


def _is_mine_to_say(line: str) -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from millstream.commands.log_once import is_first_to_say

    return is_first_to_say(line)
