"""What `generate` says of the words of its prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millstream.commands.generate import _say_reading
from millstream.core.controls import SetPrompt
from millstream.models.brook.text import WordTokenizer
from millstream.models.brook.word_table import word_table


def said_of(prompt: str, *later: str) -> list[str]:
    lines: list[str] = []
    embedder = WordTokenizer(("a", "boat", "red", "rainy", "sea"), word_table)
    engine: Any = SimpleNamespace(
        spec=SimpleNamespace(name="brook"), model=SimpleNamespace(text=SimpleNamespace(embedder=embedder))
    )
    progress = cast(Any, SimpleNamespace(say=lambda line: lines.append(line), warn=lines.append))
    _say_reading(progress, engine, prompt, [(2, SetPrompt(prompt=text)) for text in later])
    return lines


def test_words_that_are_read_as_others_and_those_left_out_are_said_once_for_all_prompts() -> None:
    assert said_of("two ships on the sea", "a maroon ship, a hammer", "two ships") == [
        "understood by brook: ships as boat, maroon as red, ship as boat",
        "not understood by brook: two, on, the, hammer",
    ]


def test_nothing_is_said_where_every_word_is_known() -> None:
    assert said_of("a red boat") == []
