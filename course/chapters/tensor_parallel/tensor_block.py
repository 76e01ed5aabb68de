"""A whole video model over ranks, as the engine shares it out: attention by heads, the MLP by hidden
units."""

from __future__ import annotations

import torch
from torch import Tensor

from course.reader import Reader
from millstream.core.config import DiTConfig
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.models.dit import CausalDiT
from millstream.parallel.shares import ParameterShare, keep_share
from millstream.parallel.tensor import connect_tensors
from millstream.train.parallel.groups import create_world
from millstream.train.sequence import ChunkedSequence, diffusion_forced

MODEL = DiTConfig(
    layers=2, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=8, time_features=32
)
LATENT_SIZE = (8, 8)
FRAMES = 2


def run(reader: Reader, world: int = 2) -> None:
    must_divide(MODEL.heads, "heads", world)
    guess = reader.predict(
        f"{MODEL.layers} blocks, each with one attention over {MODEL.heads} heads and one MLP. How many "
        "large sums?"
    )
    answers = on_ranks(called, world)
    whole = make_dit()
    expected = flow_of(whole)
    parameters = sum(each.numel() for each in whole.blocks.parameters())
    counts = answers[0][1]
    reader.reveal(guess, counts["attention"] + counts["mlp"], by="counted by the engine's record")
    assert counts == {"norms": MODEL.layers, "attention": MODEL.layers, "mlp": MODEL.layers}, f"{counts}"
    for rank, (flow, _, held) in enumerate(answers):
        error = float((flow - expected).norm() / expected.norm())
        assert error < 1e-5, f"rank {rank} is off by {error}"
        reader.say(
            f"rank {rank} holds {held / parameters:.0%} of the blocks' parameters; its flow is the whole "
            "model's, within 1e-5"
        )
    reader.say(
        f"sums: {counts['attention']} of attention, {counts['mlp']} of MLPs, and {counts['norms']} small ones"
    )
    reader.say(
        "the small ones are for norms over all heads, of which a rank has only some; attention to the prompt "
        "stays whole"
    )


def make_dit() -> CausalDiT:
    torch.manual_seed(0)
    return CausalDiT(MODEL).requires_grad_(False)


@torch.no_grad()
def flow_of(dit: CausalDiT) -> Tensor:
    made = torch.Generator().manual_seed(1)
    latents = torch.randn(1, FRAMES, MODEL.channels, *LATENT_SIZE, generator=made)
    prompt = dit.read_prompt(torch.randn(1, MODEL.text_tokens, MODEL.text_width, generator=made))
    sequence = ChunkedSequence(diffusion_forced(1, FRAMES, FRAMES), MODEL, LATENT_SIZE, torch.device("cpu"))
    flow: Tensor = dit(latents, torch.full((1, FRAMES), 500.0), sequence, prompt)
    return flow


def called(rank: int, world: int) -> tuple[Tensor, dict[str, int], int]:
    dit = make_dit()
    group = create_world()
    keep_share(dit, ParameterShare(layers=range(MODEL.layers), parts=world, place=rank))
    connect_tensors(dit, group)
    flow = flow_of(dit)
    counts = {what: count for (_, what), count in group.record.counts.items()}
    return flow, counts, sum(each.numel() for each in dit.blocks.parameters())
