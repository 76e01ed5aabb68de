"""What is made again is what was there, and less is kept meanwhile."""

from __future__ import annotations

import pytest
import torch

from benchmarks.train_equality import CHUNKS, FRAMES_PER_CHUNK, LATENT_SIZE, MODELS, WINDOW, batches, mean_square
from millstream.core.config import Recompute
from millstream.models.dit import CausalDiT
from millstream.models.prompted import PromptedDiT
from millstream.parallel.training.recompute import recompute_blocks
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced

CONFIG = MODELS["tiny"]


def learnt(how: Recompute) -> tuple[list[torch.Tensor], int]:
    """Gradients, and the bytes that were kept for the backward pass."""
    torch.manual_seed(0)
    dit = CausalDiT(CONFIG)
    recompute_blocks(dit, how)
    layout = diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW)
    model = PromptedDiT(dit, ChunkedSequence(layout, CONFIG, LATENT_SIZE, torch.device("cpu")))
    kept = dict[int, int]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = next(iter(batches(CONFIG, 0, 1)))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = mean_square(model(*rows[:3]), rows.target_BFCYX)
    held = sum(kept.values())
    loss.backward()
    return [parameter.grad for parameter in dit.parameters()], held


@pytest.mark.parametrize("how", ["selective", "full"])
def test_gradients_are_the_same_bits(how: Recompute) -> None:
    assert all(map(torch.equal, learnt(how)[0], learnt("none")[0]))


def test_full_keeps_less_than_everything() -> None:
    assert learnt("full")[1] < 0.2 * learnt("none")[1]
