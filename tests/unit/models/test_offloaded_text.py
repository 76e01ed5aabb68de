"""A text encoder at home in host memory: on the device while a text is read and not a moment longer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from millstream.core.controls import WeightedPrompt
from millstream.core.reading import PromptReading
from millstream.models.offloaded_text import OffloadedTextEncoder
from millstream.models.prompts import PromptEncoder

CPU = torch.device("cpu")


class Device:
    """Stands for a GPU: hands out copies, and counts them while anybody holds one."""

    def __init__(self) -> None:
        self.carried = 0
        self.held: list[Tensor] = []

    def carry(self, weight: Tensor) -> Tensor:
        self.carried += 1
        self.held.append(weight.clone())
        return self.held[-1]

    def has(self, parameter: nn.Parameter) -> bool:
        return any(parameter.data_ptr() == copy.data_ptr() for copy in self.held)


class Embedder:
    """Two layers, one of whose weights is tied; says where they were when it was asked."""

    def __init__(self, device: Device) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False)).requires_grad_(False)
        self.model[1].weight = self.model[0].weight
        self.device = device
        self.on_device = []

    def __call__(self, text: str) -> Tensor:
        self.on_device.append(all(self.device.has(parameter) for parameter in self.model.parameters()))
        if text == "no":
            raise ValueError("cannot be read")
        return self.model(torch.full((1, 1, 4), float(len(text))))

    def read(self, text: str) -> PromptReading:
        return PromptReading(text, (text,))


def visiting() -> tuple[OffloadedTextEncoder, Embedder, Device]:
    torch.manual_seed(0)
    device = Device()
    embedder = Embedder(device)
    return OffloadedTextEncoder(embedder, CPU, carry=device.carry), embedder, device


def test_weights_are_there_for_each_text_that_is_read_and_gone_afterwards() -> None:
    encode, embedder, device = visiting()
    homes = [parameter.data_ptr() for parameter in embedder.model.parameters()]
    prompts = PromptEncoder(encode)
    for text in ("sea", "sea", "hills"):
        prompts((WeightedPrompt(text),))
        assert [parameter.data_ptr() for parameter in embedder.model.parameters()] == homes
    assert embedder.on_device == [True, True], "a text that is remembered needs no weights"
    assert device.carried == 2 * len(homes) == 4, "what is tied is carried once"


def test_the_answer_is_the_embedders_own_wherever_it_is_asked_for() -> None:
    encode, embedder, device = visiting()
    torch.manual_seed(0)
    alone = Embedder(device)
    with torch.inference_mode():
        within = encode("sea")
    assert torch.equal(within, alone("sea"))
    assert torch.equal(encode("sea"), alone("sea"))
    assert not any(parameter.is_inference() for parameter in embedder.model.parameters())
    assert encode.read("xyzzy").unknown == ("xyzzy",)
    assert encode.num_bytes == sum(parameter.nbytes for parameter in alone.model.parameters())


def test_weights_go_home_after_a_text_that_cannot_be_read() -> None:
    encode, embedder, device = visiting()
    with pytest.raises(ValueError, match="cannot be read"):
        encode("no")
    assert not any(device.has(parameter) for parameter in embedder.model.parameters())
