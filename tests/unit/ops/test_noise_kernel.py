"""Noise in one kernel against noise in tensor operations, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU is here: tests/gpu runs this kernel compiled", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton, which interprets kernels on a CPU")

from millstream.ops.kernels.noise import launch_gaussian, launch_gaussian_rows
from millstream.ops.noise import COMMIT_STEP, gaussian, gaussian_rows

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy, inside the interpreter


@pytest.mark.parametrize("count", [1, 7, 4096, 4099])
@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**62 + 12345])
def test_the_kernel_draws_the_same_normals(count: int, seed: int) -> None:
    name = dict(seed=seed, epoch=1, chunk=70_000, step=COMMIT_STEP)
    found = launch_gaussian(count, **name, device="cpu")
    assert torch.allclose(found, gaussian((count,), **name), atol=2e-6)


@pytest.mark.parametrize("count", [7, 4099])
def test_the_kernel_draws_each_row_from_its_own_seed(count: int) -> None:
    seeds = torch.tensor([5, 0, 2**32 + 5, 5])
    name = dict(epoch=1, chunk=3, step=2)
    found = launch_gaussian_rows(count, seeds, **name)
    expected = gaussian_rows((count,), seeds, **name)
    assert torch.allclose(found, expected, atol=2e-6)
    assert torch.equal(expected[2], gaussian((count,), seed=2**32 + 5, **name))
    assert not torch.equal(found[0], found[1])
