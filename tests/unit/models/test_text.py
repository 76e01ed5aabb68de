"""The text encoder against transformers' UMT5EncoderModel, and its LRU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import UMT5EncoderModel

from millstream.core.config import TextConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.presets import MODELS
from millstream.models.prompts import PromptEncoder
from millstream.models.registry import load_model
from millstream.models.wan.text import ByteTokenizer, UMT5Embedder, build_umt5
from tests.unit.models_for_tests import relative_error, shaken

CONFIG = TextConfig(width=32, layers=3, heads=2, head_width=16, ffn=48, vocabulary=384)


def encoder(capacity: int = 4) -> PromptEncoder:
    torch.manual_seed(0)
    embedder = UMT5Embedder(shaken(build_umt5(CONFIG)), ByteTokenizer(), tokens=24)
    return PromptEncoder(embedder, capacity=capacity)


def padded_reference(model: UMT5EncoderModel, text: str, tokens: int) -> torch.Tensor:
    """As Wan does it: pad, mask, encode, and put zeros where the padding was."""
    ids = ByteTokenizer().ids(text, tokens)
    padded = torch.tensor([ids + [0] * (tokens - len(ids))])
    mask = (torch.arange(tokens) < len(ids)).long()[None]
    return model(input_ids=padded, attention_mask=mask).last_hidden_state * mask[..., None]


def test_embeddings_equal_the_padded_and_masked_reference() -> None:
    encode = encoder()
    for text in ("a boat", "é", "a much longer prompt that does not fit"):
        found = encode((WeightedPrompt(text),))
        assert relative_error(found, padded_reference(encode.embedder.model, text, 24)) <= 1e-4


@pytest.mark.parametrize(("word", "layers"), [("random", 2), ("random:3", 2), ("random-whole", 5), ("random-whole:3", 5)])
def test_random_weights_have_a_small_text_encoder_unless_all_of_it_is_asked_for(word: str, layers: int) -> None:
    tiny = MODELS["wan-tiny"]
    assert isinstance(tiny.text, TextConfig)
    spec = replace(tiny, text=replace(tiny.text, layers=5))
    loaded = load_model(spec, [word], device=torch.device("cpu"), dtype=torch.float32)
    assert isinstance(loaded.text.embedder, UMT5Embedder)
    assert loaded.text.embedder.model.config.num_layers == layers


def test_a_mix_is_the_weighted_sum_of_its_texts() -> None:
    encode = encoder()
    both = encode((WeightedPrompt("sea", 0.25), WeightedPrompt("sand", 0.75)))
    assert torch.allclose(both, 0.25 * encode.encode("sea") + 0.75 * encode.encode("sand"), atol=1e-6)


def test_recent_texts_are_encoded_once_and_old_ones_forgotten() -> None:
    encode = encoder(capacity=2)
    calls = []
    encode.embedder.model.register_forward_hook(lambda *_: calls.append(1))
    for text in ("a", "b", "a", "c", "a", "b"):
        encode.encode(text)
    assert len(calls) == 4  # a, b, c, and b again: c pushed it out
