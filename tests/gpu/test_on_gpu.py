"""What only a GPU can show. Skipped elsewhere, with the reason."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from millstream.core.presets import MODELS
from millstream.engine.engine import Engine
from millstream.models.dit import CausalDiT
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.ops.noise import gaussian
from tests.unit.models_for_tests import dit, relative_error, vae

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CPU = torch.device("cpu")
GPU = torch.device("cuda")


def ring_on(device: torch.device, model: CausalDiT, dtype: torch.dtype = torch.float32) -> KVRing:
    c = model.config
    shape = RingShape(
        layers=c.layers,
        heads=c.heads,
        head_width=c.head_width,
        grid=(4, 6),
        window=6,
        sink=1,
        positions="windowed",
    )
    return KVRing(shape, device=device, dtype=dtype)


@torch.inference_mode()
def run_chunks(model: CausalDiT, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    memory = ring_on(device, model)
    cross = model.read_prompt(torch.randn(1, 7, 24, generator=generator).to(device))
    flows = []
    for number in range(4):
        latents = torch.randn(1, 3, 4, 8, 12, generator=generator).to(device)
        memory.place(list(range(3 * number, 3 * number + 3)))
        flows.append(model(latents, torch.full((1, 3), 800.0, device=device), memory, cross))
        model.commit(latents, torch.zeros(1, 3, device=device), memory, cross)
    return torch.cat(flows).cpu()


def test_chunks_on_the_gpu_equal_those_on_the_cpu() -> None:
    model = dit()
    assert relative_error(run_chunks(deepcopy(model).to(GPU), GPU), run_chunks(model, CPU)) <= 1e-4


def test_the_vae_on_the_gpu_equals_that_on_the_cpu() -> None:
    model = vae()
    latents = torch.randn(1, 3, 4, 4, 6)
    pixels = torch.rand(1, 9, 3, 32, 48) * 2 - 1
    there = deepcopy(model).to(GPU)
    torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        assert relative_error(there.decode(latents.to(GPU))[0].cpu(), model.decode(latents)[0]) <= 1e-4
        assert relative_error(there.encode(pixels.to(GPU))[0].cpu(), model.encode(pixels)[0]) <= 1e-4


def test_noise_is_the_same_on_every_device() -> None:
    name = dict(seed=3, epoch=1, chunk=7, step=2)
    assert torch.allclose(
        gaussian((1, 3, 16, 60, 104), **name, device=GPU).cpu(),
        gaussian((1, 3, 16, 60, 104), **name),
        atol=1e-5,
    )


def test_the_same_seed_gives_the_same_bits_run_to_run() -> None:
    engine = Engine("wan-mini", weights="random", device="cuda")
    runs = [[chunk.digest for chunk in engine.session("sea", seed=4).stream(5)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_closing_a_session_frees_its_memory_to_the_byte() -> None:
    engine = Engine("wan-mini", weights="random", device="cuda")
    warm = engine.session("sea")
    list(warm.stream(2))
    warm.close()
    before = torch.cuda.memory_allocated()
    session = engine.session("sea")
    list(session.stream(2))
    assert torch.cuda.memory_allocated() > before
    session.close()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_model_calls_never_wait_for_the_device() -> None:
    torch.manual_seed(0)
    model = CausalDiT(MODELS["wan-tiny"].dit).to(GPU, torch.bfloat16)
    memory = ring_on(GPU, model, torch.bfloat16)
    cross = model.read_prompt(torch.randn(1, 8, 32, device=GPU, dtype=torch.bfloat16))
    latents = torch.randn(1, 3, 4, 8, 12, device=GPU, dtype=torch.bfloat16)
    level = torch.full((1, 3), 500.0, device=GPU)
    with torch.inference_mode():
        memory.place([0, 1, 2])
        model(latents, level, memory, cross)
        torch.cuda.set_sync_debug_mode("error")
        try:
            memory.place([3, 4, 5])
            model(latents, level, memory, cross)
            model.commit(latents, level, memory, cross)
        finally:
            torch.cuda.set_sync_debug_mode("default")
