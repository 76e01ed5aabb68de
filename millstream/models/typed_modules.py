"""A list of modules that declares their type, for code that iterates over it. To PyTorch it is like any
other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class TypedModuleList(nn.ModuleList, Generic[M]):
    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[M] = ()) -> None: ...

        def __iter__(self) -> Iterator[M]: ...
