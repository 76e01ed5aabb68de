"""Rows that are copied beside the computation are whole when they are used, and their memory is nobody else's
until then."""

from __future__ import annotations

import pytest
import torch

from millstream.train.finetune.loader import RowLoader
from millstream.train.parallel.task import FlowRows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_rows_are_whole_when_they_are_used() -> None:
    gpu = torch.device("cuda")

    def large(step: int) -> FlowRows:
        return FlowRows(*(torch.full((1 << 24,), float(step)) for _ in range(4)))

    busy = torch.randn(4096, 4096, device=gpu)
    sums = list[torch.Tensor]()
    with RowLoader(large, gpu, position=0) as loader:
        for _ in range(6):
            rows = loader.next()
            for _ in range(8):
                busy = busy @ busy / 4096  # the device is behind when rows are read
            sums.append(torch.stack([(tensor - tensor[0]).abs().max() + tensor[0] for tensor in rows[:4]]))
            del rows
    assert torch.equal(torch.stack(sums).cpu(), torch.arange(6.0)[:, None].expand(6, 4))
