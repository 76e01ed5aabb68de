"""Prompts for whoever gives none. In words that the bundled model learnt, so that it shows what they say."""

from __future__ import annotations

EXAMPLES = (
    "a large red balloon drifts slowly over the hills at dawn",
    "a yellow boat on the sea at sunset",
    "a pink bird drifts over the forest in the fog by day",
    "a red train through the city at dusk in the snow",
    "an orange paper lantern above the city at night in the rain",
    "a large pink jellyfish drifts over the sea at night under an aurora",
)
DEFAULT_PROMPT = EXAMPLES[0]
