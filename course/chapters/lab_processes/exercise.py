"""Lab 01. Fill in the functions, then run `millstream course check lab-01`."""

from __future__ import annotations

from torch import Tensor, nn


def device_of(rank: int, gpus_here: int) -> str:
    """Ranks are numbered machine by machine, one for each GPU: `cuda:K`. On a machine without a GPU:
    `cpu`."""
    raise NotImplementedError("device_of")


def same_start(model: nn.Module) -> None:
    """All ranks get rank 0's parameters, in ONE broadcast. Parameters stay the objects that they are."""
    raise NotImplementedError("same_start")


def shared_forward(model: nn.Module, rows: Tensor, rank: int, world: int) -> Tensor:
    """Every rank has all rows, and computes only its own part of them; every rank returns the outputs of all
    rows, in order.

    The number of rows need not divide by the number of ranks, and nobody may compute more rows than the
    largest part.
    """
    raise NotImplementedError("shared_forward")
