"""A tensor that was left behind on another device, and ranks that are not on the kind of device they think.

There is no GPU in most laptops, so the other device is torch's `meta`: it has shapes and no numbers, and
refuses to mix alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.reader import Reader
from millstream.core.errors import MeshError, RankRaised
from millstream.mesh.local_ranks import on_ranks
from millstream.mesh.startup import differences

ELSEWHERE = "meta"


class LeftBehind(nn.Module):
    def __init__(self, *, is_buffer: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.scale = torch.ones(4)
        if is_buffer:
            del self.scale
            self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.scale


def run(reader: Reader) -> None:
    x = torch.ones(4, device=ELSEWHERE)
    broken, mended = (LeftBehind(is_buffer=each).to(ELSEWHERE) for each in (False, True))
    try:
        broken(x)
    except RuntimeError as error:
        reader.say(f"symptom: in the middle of a forward pass, {str(error).splitlines()[0]}")
    else:
        raise AssertionError("tensors on two devices were multiplied")
    found = list(unregistered(broken))
    reader.say(f"tool: tensors that a module holds and .to() does not know: {', '.join(found)}")
    assert found == ["scale on cpu"], f"{found}"
    assert mended(x).device.type == ELSEWHERE, "a buffer goes along"
    assert not list(unregistered(mended)), "and is known"
    reader.say("fix: register_buffer, or make it in forward on the device of its input")
    try:
        on_ranks(meet, 2)
    except RankRaised as error:
        reader.say(f"ranks that differ, found before any of them waits: {error.problem}")
    else:
        raise AssertionError("ranks on different devices began to work")


def unregistered(module: nn.Module) -> Iterator[str]:
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{prefix + '.' if prefix else ''}{name} on {value.device}"


def meet(rank: int, world: int) -> None:
    """As the ranks of a mesh do: facts are compared before anything is computed."""
    mine = {"device": "cpu" if rank == 0 else ELSEWHERE, "dtype": "float32"}
    facts: list[dict[str, str]] = [{}] * world
    dist.all_gather_object(facts, mine)
    differing = differences(dict(enumerate(facts)))
    if differing:
        raise MeshError(" | ".join(differing))
