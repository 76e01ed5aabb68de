"""A peer's training step, timed from a checkout of its code; here a tiny package of the same shape stands for
it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import peer_training, report, train_step
from benchmarks.peer_training import attend, import_peer, prepare
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS

pytestmark = pytest.mark.slow

CAUSAL = """
import torch
from torch import nn
from einops import repeat
from wan.modules.model import cross_attend

class CausalWanModel(nn.Module):
    def __init__(self, *, in_dim, out_dim, dim, ffn_dim, freq_dim, text_dim, text_len, num_heads, num_layers):
        super().__init__()
        self.into, self.text, self.head = nn.Linear(in_dim, dim), nn.Linear(text_dim, dim), nn.Linear(dim, out_dim)
        nn.init.zeros_(self.head.weight)
        self.gradient_checkpointing, self.num_frame_per_block, self.heads = False, 1, num_heads

    def block(self, x, text):
        return x + cross_attend(x, text, self.heads)

    def forward(self, x, t, context, seq_len):
        assert x.shape[0] == 1 and x.shape[2] == t.shape[1], (x.shape, t.shape)
        assert seq_len == x.shape[2] * x.shape[3] * x.shape[4] // 4
        levels = t.unflatten(1, (-1, self.num_frame_per_block))
        assert (levels == levels[..., :1]).all(), "a level for each chunk"
        tokens = self.into(x.flatten(2).transpose(1, 2))
        text = self.text(context)
        if self.gradient_checkpointing:
            tokens = torch.utils.checkpoint.checkpoint(self.block, tokens, text, use_reentrant=False)
        else:
            tokens = self.block(tokens, text)
        return self.head(tokens).transpose(1, 2).unflatten(2, x.shape[2:])
"""
MODEL = """
from .attention import flash_attention

def cross_attend(x, text, heads):
    q, k = x.unflatten(2, (heads, -1)), text.unflatten(2, (heads, -1))
    return flash_attention(q, k, k, k_lens=None).flatten(2)
"""
ATTENTION = """
def flash_attention(*_, **__):
    raise RuntimeError("flash-attn is not here")
"""
SCHEDULER = """
import torch

class FlowMatchScheduler:
    def __init__(self, shift, sigma_min, extra_one_step):
        pass

    def set_timesteps(self, count, training):
        self.timesteps = torch.linspace(count, 0, count + 1)[:-1]

    def add_noise(self, clean, noise, level):
        share = (level / 1000).reshape(-1, 1, 1, 1)
        return ((1 - share) * clean + share * noise).type_as(noise)

    def training_target(self, clean, noise, level):
        return noise - clean

    def training_weight(self, level):
        return torch.ones_like(level.flatten())
"""
FILES = {
    "wan/__init__.py": "raise ImportError('text encoders, tokenizers and pictures')",
    "wan/modules/__init__.py": "raise ImportError('the same')",
    "wan/modules/causal_model.py": CAUSAL,
    "wan/modules/model.py": MODEL,
    "wan/modules/attention.py": ATTENTION,
    "utils/scheduler.py": SCHEDULER,
}
TINY = MODELS["wan-tiny"].dit


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A package as Self-Forcing's checkout has it; what it imported is forgotten afterwards."""
    for name, text in FILES.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = dict(sys.modules)
    yield tmp_path / "checkout"
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def step_of(checkout: Path, *, recompute: bool = False) -> peer_training.PeerStep:
    device = torch.device("cpu")
    sizes: dict[str, Any] = dict(frames=6, frames_per_chunk=3, latent_size=(4, 8))
    return prepare(checkout, TINY, **sizes, recompute=recompute, device=device)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_of_the_peers_code_reaches_every_weight_and_leaves_no_gradients(
    checkout: Path, recompute: bool
) -> None:
    step = step_of(checkout, recompute=recompute)
    reached = set[str]()
    for name, weights in step.model.named_parameters():
        weights.register_hook(lambda gradient, name=name: reached.add(name) if gradient.any() else None)
    step.run()
    assert reached == {name for name, _ in step.model.named_parameters()}, (
        "a head of zeros would reach none behind it"
    )
    assert all(weights.grad is None for weights in step.model.parameters())


def test_a_row_says_what_was_replaced_and_which_files_ran(checkout: Path) -> None:
    about = step_of(checkout).about
    assert "flash-attn" in about["replaced"]
    assert about["recompute"] == "none"
    before = about["their_files"]
    with (checkout / "utils/scheduler.py").open("a") as file:
        file.write("# another line\n")
    for name in (
        "wan",
        "wan.modules",
        "utils",
        "wan.modules.causal_model",
        "wan.modules.model",
        "utils.scheduler",
    ):
        sys.modules.pop(name, None)
    assert step_of(checkout).about["their_files"] != before


def test_a_folder_that_is_no_checkout_is_refused_by_the_file_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is no checkout of Self-Forcing: it has no wan/modules/causal_model.py"
    ):
        import_peer(tmp_path)


def test_attention_that_stands_for_flash_attn_is_over_all_keys_and_knows_no_padding() -> None:
    q = torch.randn(1, 5, 2, 8)
    k = torch.randn(1, 7, 2, 8)
    expected = torch.einsum("bqnh,bknh->bnqk", q, k).div(8**0.5).softmax(-1) @ k.transpose(1, 2)
    torch.testing.assert_close(attend(q, k, k, k_lens=torch.tensor([7])), expected.transpose(1, 2))
    with pytest.raises(AssertionError, match="padded"):
        attend(q, k, k, k_lens=torch.tensor([6]))


def test_the_command_times_a_peer_in_a_process_of_its_own(checkout: Path) -> None:
    found = train_step.in_own_process("self-forcing-full", ["--miniature", f"--self-forcing={checkout}"])
    assert found["seconds"] > 0
    assert found["recompute"] == "full"


def test_no_figure_of_a_peer_is_written_that_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(train_step, "RESULTS", tmp_path)
    ours = {
        "seconds": 1.3,
        "peak_gib": 85.0,
        "step_seconds": 1.4,
        "step_peak_gib": 95.0,
        "model_tflops": 455.0,
    }
    train_step.keep("1.3b-none", ours)
    measured = json.loads((tmp_path / "train_step.json").read_text())["measured"]
    assert measured.keys() == {"cases", "peers", "off_plan"}
    assert not measured["peers"]
    train_step.keep("self-forcing-none", {"seconds": 2.0, "peak_gib": 90.0, "replaced": "flash-attn"})
    measured = json.loads((tmp_path / "train_step.json").read_text())["measured"]
    assert measured["cases"].keys() == {"1.3b-none"}
    assert measured["peers"]["self-forcing-none"]["seconds"] == 2.0
