"""The text encoder against transformers' UMT5EncoderModel, and its LRU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from millstream.core.config import TextConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.presets import MODELS
from millstream.models.prompts import PromptEncoder
from millstream.models.registry import load_model
from millstream.models.wan.text import ByteTokenizer, UMT5Embedder, UMT5Tokenizer
from millstream.models.wan.umt5 import UMT5Encoder, position_buckets
from tests.unit.checkpoints import original_folder
from tests.unit.models_for_tests import relative_error, shaken

if TYPE_CHECKING:
    from transformers import UMT5EncoderModel

CONFIG = TextConfig(width=32, layers=3, heads=2, head_width=16, ffn=48, vocabulary=384)
LENGTH = 160
"""Tokens: past the distance from which all share a bucket."""


def encoder(capacity: int = 4, tokens: int = 24) -> PromptEncoder:
    torch.manual_seed(0)
    embedder = UMT5Embedder(shaken(UMT5Encoder(CONFIG)), ByteTokenizer(), tokens=tokens)
    return PromptEncoder(embedder, capacity=capacity)


def reference(ours: UMT5Encoder, attention: str = "sdpa") -> UMT5EncoderModel:
    """Of transformers, with the same weights."""
    from transformers import (
        UMT5Config,
        UMT5EncoderModel,
    )  # seconds, and who collects tests would pay them too

    config = UMT5Config(
        vocab_size=CONFIG.vocabulary,
        d_model=CONFIG.width,
        d_kv=CONFIG.head_width,
        d_ff=CONFIG.ffn,
        num_layers=CONFIG.layers,
        num_heads=CONFIG.heads,
        relative_attention_num_buckets=CONFIG.position_buckets,
        feed_forward_proj="gated-gelu",
        attn_implementation=attention,
    )
    model = UMT5EncoderModel(config).to(ours.shared.weight.dtype).eval()
    weights = dict(ours.state_dict())
    model.load_state_dict({**weights, "encoder.embed_tokens.weight": weights["shared.weight"]})
    return model


def padded_reference(model: UMT5EncoderModel, text: str, tokens: int) -> Tensor:
    """As Wan does it: pad, mask, encode, and put zeros where the padding was."""
    ids = ByteTokenizer().ids(text, tokens)
    padded = torch.tensor([ids + [0] * (tokens - len(ids))])
    mask = (torch.arange(tokens) < len(ids)).long()[None]
    return model(input_ids=padded, attention_mask=mask).last_hidden_state * mask[..., None]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_embeddings_equal_the_padded_and_masked_reference(attention: str) -> None:
    encode = encoder(tokens=LENGTH)
    model = reference(encode.embedder.model, attention)
    for text in ("a boat", "é", "a prompt that is longer than one can say " * 4):
        assert relative_error(encode((WeightedPrompt(text),)), padded_reference(model, text, LENGTH)) <= 2e-6


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_without_padding_has_the_bits_of_the_reference(dtype: torch.dtype) -> None:
    ours = encoder().embedder.model.to(dtype)
    ids = torch.randint(CONFIG.vocabulary, (2, LENGTH))
    assert torch.equal(ours(ids), reference(ours)(input_ids=ids).last_hidden_state)


@pytest.mark.slow
@pytest.mark.parametrize("num_buckets", [8, 32, 64])
def test_positions_fall_into_the_buckets_of_the_reference(num_buckets: int) -> None:
    from transformers.models.umt5.modeling_umt5 import UMT5Attention, UMT5Config

    attention = UMT5Attention(
        UMT5Config(relative_attention_num_buckets=num_buckets, d_model=8, d_kv=4, num_heads=2)
    )
    places = torch.arange(512)
    expected = attention._relative_position_bucket(places[None, :] - places[:, None])
    assert torch.equal(position_buckets(512, num_buckets, torch.device("cpu")), expected)


@pytest.mark.slow
def test_tokens_are_those_of_the_reference(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = original_folder(tmp_path) / "google/umt5-xxl"
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ours = UMT5Tokenizer(folder)
    for text, limit in (
        ("a boat on the sea", 8),
        ("sea " * 20, 8),
        ("", 8),
        ("an unknown storm", 3),
        ("the sea", 64),
    ):
        assert ours.ids(text, limit) == theirs(text, truncation=True, max_length=limit)["input_ids"]


@pytest.mark.parametrize(
    ("word", "layers"), [("random", 2), ("random:3", 2), ("random-whole", 5), ("random-whole:3", 5)]
)
def test_random_weights_have_a_small_text_encoder_unless_all_of_it_is_asked_for(
    word: str, layers: int
) -> None:
    tiny = MODELS["wan-tiny"]
    assert isinstance(tiny.text, TextConfig)
    spec = replace(tiny, text=replace(tiny.text, layers=5))
    loaded = load_model(spec, [word], device=torch.device("cpu"), dtype=torch.float32)
    assert isinstance(loaded.text.embedder, UMT5Embedder)
    assert loaded.text.embedder.model.config.layers == layers


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
