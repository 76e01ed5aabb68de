"""Our own data parallel: copies of a module that see different rows and learn as one.

Gradients become ready from the last layer to the first. They are laid end to end in buckets in that order,
and a bucket is summed over the ranks as soon as it and those before it are full, while the backward pass goes
on with earlier layers. All ranks begin the same sums in the same order, whatever order their gradients come
in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from millstream.core.errors import UnusedParameters
from millstream.models.weights.unread import bring
from millstream.parallel.collectives import PendingCollective, RankGroup
from millstream.train.parallel.plan import BUCKET_BYTES


class _Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.ready: set[nn.Parameter] = set()
        self.pending: PendingCollective | None = None

    @property
    def is_full(self) -> bool:
        return len(self.ready) == len(self.parameters)

    @torch.no_grad()
    def laid_out(self) -> Tensor:
        """Return the gradients end to end in float32, in which they are summed. The parameters' gradients are
        views of the result from now on, so that they are held once."""
        laid_out = end_to_end([gradient_of(parameter) for parameter in self.parameters], torch.float32)
        self.set_grads(laid_out)
        return laid_out

    def set_grads(self, laid_out: Tensor) -> None:
        parts = laid_out.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)


class Replicas:
    def __init__(self, module: nn.Module, group: RankGroup, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        """All ranks begin with the first rank's parameters and buffers."""
        assert bucket_bytes > 0, f"buckets of {bucket_bytes} bytes"
        bring(module.parameters())
        self._module = module
        self._group = group
        self._names = {
            parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        self._buckets = [_Bucket(each) for each in _in_buckets(list(self._names)[::-1], bucket_bytes)]
        self._begun = 0
        """Number of buckets whose sums have begun."""
        self._syncs = True
        self.broadcast([*module.parameters(), *module.buffers()])
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._became_ready, bucket))

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.data, source=self._group.ranks[0], what="start")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients add up here; the next backward pass outside, or `finish`, sends them all."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def finish(self) -> None:
        """Wait until every gradient is the mean over the ranks, and hold the first rank's buffers."""
        unused = [name for parameter, name in self._names.items() if parameter.grad is None]
        if unused:
            raise UnusedParameters(unused)
        if self._group.size == 1:
            return  # gradients are what they are the mean of
        for bucket in self._buckets:
            bucket.ready.update(bucket.parameters)
        self._begin_full()
        for bucket in self._buckets:
            assert bucket.pending is not None, "every full bucket was sent"
            bucket.set_grads(bucket.pending.wait().div_(self._group.size))
            bucket.pending = None
            bucket.ready.clear()
        self._begun = 0
        self.broadcast(list(self._module.buffers()))

    def _became_ready(self, bucket: _Bucket, parameter: Tensor) -> None:
        if self._syncs and self._group.size > 1:
            assert isinstance(parameter, nn.Parameter), f"a hook of {type(parameter)}"
            bucket.ready.add(parameter)
            self._begin_full()

    def _begin_full(self) -> None:
        while self._begun < len(self._buckets) and self._buckets[self._begun].is_full:
            bucket = self._buckets[self._begun]
            bucket.pending = self._group.start_sum(bucket.laid_out(), "gradients")
            self._begun += 1


def _in_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters of each bucket, in order: as large as allowed, of one dtype, and of one parameter
    where that is larger."""
    bucket = list[nn.Parameter]()
    size = 0
    for parameter in parameters:
        grows = parameter.numel() * parameter.element_size()
        if bucket and (size + grows > bucket_bytes or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
            size = 0
        bucket.append(parameter)
        size += grows
    if bucket:
        yield bucket


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, f"a parameter of {tuple(parameter.shape)} has no gradient"
    return parameter.grad


def end_to_end(tensors: Sequence[Tensor], dtype: torch.dtype, filling: int = 0) -> Tensor:
    """Return one row of all tensors, each cast as it is copied, with `filling` zeros at the end."""
    first = tensors[0]
    laid_N = first.new_empty(sum(tensor.numel() for tensor in tensors) + filling, dtype=dtype)
    return torch.cat(
        [*(tensor.detach().flatten() for tensor in tensors), first.new_zeros(filling)], out=laid_N
    )
