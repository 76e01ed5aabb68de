"""Tensors of a GPU on the wire: copied to host memory, where each gets its checksum."""

from __future__ import annotations

import pytest
import torch

from millstream.core.errors import WireError
from millstream.ops.host import HostCopy
from millstream.wire.framing import Answers, check_memory, memory_of, on_host, pack, read_header, read_meta

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_tensor_of_a_gpu_has_a_checksum_when_it_leaves() -> None:
    latents = torch.randn(2, 3, device="cuda")
    frame = pack(Answers(sequence=1, results=()), {"latents": latents})
    frame = on_host(frame, [HostCopy(tensor, beside=True).wait() for tensor in frame.tensors])
    _, (entry,) = read_meta(read_header(frame.header), frame.meta)
    (sent,) = frame.tensors
    assert torch.equal(sent, latents.cpu())
    check_memory(entry, memory_of(sent))
    with pytest.raises(WireError, match="damaged"):
        check_memory(entry, memory_of(sent + 1))
