"""The planner's counts against models built on the meta device, and against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from millstream.core.chunk_work import chunk_flops
from millstream.core.config import StreamConfig
from millstream.core.presets import MODELS
from millstream.models.brook.text import BrookText
from millstream.models.brook.vae import BrookVAE
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.wan.umt5 import UMT5Encoder
from millstream.models.wan.vae import WanVAE
from millstream.planner.memory import (
    dit_parameters,
    injector_parameters,
    memory_need,
    text_parameters,
    vae_parameters,
    window_bytes,
)
from tests.unit.models_for_tests import ring

MIB = 2**20


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    spec = MODELS[name]
    with torch.device("meta"):
        if name == "brook":
            vae = BrookVAE(spec.vae)
            text = BrookText(spec.text)
        else:
            vae = WanVAE(spec.vae)
            text = UMT5Encoder(spec.text)
        assert dit_parameters(spec.dit) == count(CausalDiT(spec.dit))
        assert vae_parameters(spec.vae) == count(vae)
        assert text_parameters(spec.text) == count(text)
        assert injector_parameters(spec) == count(Injectors(spec.conditions, spec.dit))


def test_an_injector_s_work_and_weights_are_those_of_a_chunk_with_keys_and_a_camera() -> None:
    spec = MODELS["wan-tiny-world"]
    plain = MODELS["wan-tiny"]
    stream = spec.stream
    injectors = Injectors(spec.conditions, spec.dit)
    with FlopCounterMode(display=False) as counter:
        injectors(torch.ones(1, 3, 7), torch.ones(1, 3, 6, *stream.latent_size))
    assert chunk_flops(spec, stream) - chunk_flops(plain, stream) == counter.get_total_flops() > 0
    more = (
        memory_need(spec, stream, value_bytes=2).total_bytes
        - memory_need(plain, stream, value_bytes=2).total_bytes
    )
    assert more == 2 * count(injectors)


def test_the_family_has_its_published_sizes() -> None:
    assert dit_parameters(MODELS["wan2.1-t2v-1.3b"].dit) == pytest.approx(1.42e9, rel=0.01)
    assert dit_parameters(MODELS["wan2.1-t2v-14b"].dit) == pytest.approx(14.29e9, rel=0.01)
    assert vae_parameters(MODELS["wan2.1-t2v-14b"].vae) == pytest.approx(127e6, rel=0.01)
    assert 4.5e6 < dit_parameters(MODELS["wan-mini"].dit) < 7e6


@pytest.mark.parametrize(("name", "mib"), [("wan2.1-t2v-1.3b", 274), ("wan2.1-t2v-14b", 1.19 * 1024)])
def test_a_frame_of_keys_and_values_at_480x832_costs_what_is_known(name: str, mib: float) -> None:
    stream = StreamConfig(height=480, width=832, window=21)
    assert window_bytes(MODELS[name].dit, stream, value_bytes=2) / 21 / MIB == pytest.approx(mib, rel=0.01)


@pytest.mark.parametrize("positions", ["absolute", "windowed"])
def test_the_window_is_what_a_ring_holds(positions: str) -> None:
    spec = MODELS["wan-tiny"]
    stream = replace(spec.stream, window=8, sink=3, positions=positions)
    held = ring(spec.dit, (2, 2), window=8, sink=3, positions=positions).num_bytes
    assert window_bytes(spec.dit, stream, value_bytes=4) == held


def test_the_prompt_costs_what_its_cache_holds() -> None:
    spec = MODELS["wan-tiny"]
    cross = CausalDiT(spec.dit).read_prompt(torch.randn(1, spec.dit.text_tokens, spec.dit.text_width))
    assert memory_need(spec, spec.stream, value_bytes=4).prompt_bytes == cross.num_bytes
