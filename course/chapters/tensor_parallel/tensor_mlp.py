"""The engine's own MLP over ranks: up by outputs, down by inputs. In between hidden units stay in parts: one
sum is enough."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.models.dit import MLP
from millstream.parallel.tensor import TensorMLP
from millstream.train.parallel.groups import create_world

TOKENS = 6
WIDTH = 16
HIDDEN = 32


def run(reader: Reader, world: int = 2) -> None:
    must_divide(HIDDEN, "hidden units", world)
    guess = reader.predict("an MLP is two products. How many sums over ranks does it take?")
    answers = on_ranks(shared_out, world)
    reader.reveal(guess, answers[0][1], by="counted by the engine's record")
    whole = whole_mlp()
    expected = whole(tokens())
    parameters = sum(each.numel() for each in whole.parameters())
    for rank, (found, sums, held) in enumerate(answers):
        assert torch.allclose(found, expected, atol=1e-5), (
            f"rank {rank} is off by {float((found - expected).abs().max())}"
        )
        assert sums == 1, f"rank {rank} made {sums} sums"
        reader.say(f"rank {rank} holds {held} of {parameters} parameters and has the output of the whole MLP")


def whole_mlp() -> MLP:
    torch.manual_seed(0)
    return MLP(WIDTH, HIDDEN, WIDTH, "gelu").requires_grad_(False)


def tokens() -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def shared_out(rank: int, world: int) -> tuple[Tensor, int, int]:
    """The output, how many sums it took, and how many parameters are here."""
    share = whole_mlp()
    group = create_world()
    share.up.weight = nn.Parameter(share.up.weight.chunk(world, dim=0)[rank], requires_grad=False)
    share.up.bias = nn.Parameter(share.up.bias.chunk(world)[rank], requires_grad=False)
    share.down.weight = nn.Parameter(share.down.weight.chunk(world, dim=1)[rank], requires_grad=False)
    mlp = TensorMLP(share, group)
    return mlp(tokens()), group.record.counts.total(), sum(each.numel() for each in mlp.parameters())
