"""A frame cut into tiles, rows by columns, each on a device of its own: which are neighbours, and how these
trade edges.

A convolution reaches over the edge of a tile, so the canvas it works on has a rim for the neighbours' pixels,
or for zeros where the frame ends. Rows are traded first and columns after them, rims included: so corners
come along. Attention within a frame needs all pixels, which every tile sends to every other. All tiles make
the same trades in the same order, each on a thread of its own; one that fails fails all. Knows no network.
Shapes: T frames, P pixels of a tile, C channels; frames are [..., Y, X] unless it says where their rows and
columns are.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.core.errors import ConfigError, DeviceError
from millstream.models.wan.channels_last import TileBorders

PATIENCE_S = 60.0
"""How long a tile waits for another's pixels."""
Boxes = Sequence[Sequence[SimpleQueue[Tensor | None]]]
"""Pixels that each tile has sent to each other one and that are not received yet: a few edges, since tiles
that trade both ways wait for each other."""


class TileLost(DeviceError):
    """Another tile's pixels that do not come."""


class Grid(NamedTuple):
    """Tiles are counted row by row."""

    rows: int
    columns: int

    def cut(self, x: Tensor, unit: int) -> list[Tensor]:
        """Cut a frame into its tiles, all of whole units of so many pixels, as even as can be."""
        return [
            tile for row in _shares(x, self.rows, unit, -2) for tile in _shares(row, self.columns, unit, -1)
        ]

    def joined(self, tiles: Sequence[Tensor]) -> Tensor:
        rows = [tiles[first : first + self.columns] for first in range(0, len(tiles), self.columns)]
        return torch.cat([torch.cat(list(row), dim=-1) for row in rows], dim=-2)


def choose_grid(latent_size: tuple[int, int], count: int) -> Grid:
    """Choose, of all grids of so many tiles, the one whose largest tile is smallest, its rim included; of
    equals the one with most rows."""
    rows, columns = latent_size
    grids = [Grid(each, count // each) for each in range(count, 0, -1) if count % each == 0]
    fitting = [grid for grid in grids if grid.rows <= rows and grid.columns <= columns]
    if not fitting:
        raise ConfigError(
            f"{rows}x{columns} latent cells do not make {count} tiles; split the VAE over fewer devices"
        )
    return min(fitting, key=lambda grid: (-(-rows // grid.rows) + 2) * (-(-columns // grid.columns) + 2))


class Tile(TileBorders):
    """One tile, and how it communicates with the others."""

    def __init__(self, place: int, boxes: Boxes) -> None:
        self.place = place
        self._boxes = boxes
        self.grid = Grid(len(boxes), 1)
        """Grid of the frame that is under way."""

    def fill(self, canvas: Tensor, before: int, after: int, dims: tuple[int, int] = (1, 2)) -> None:
        """Fill the rim of a canvas, so many pixels before and after the tile's own, along `dims` for rows and
        columns."""
        row, column = divmod(self.place, self.grid.columns)
        for dim, at, count, step in (
            (dims[0], row, self.grid.rows, self.grid.columns),
            (dims[1], column, self.grid.columns, 1),
        ):
            previous = self.place - step if at > 0 else None
            following = self.place + step if at + 1 < count else None
            end = canvas.shape[dim] - after
            # All is sent before anything is waited for, and a box holds any number: no two tiles wait for
            # each other.
            if after:
                self._send(previous, canvas.narrow(dim, before, after))
            if before:
                self._send(following, canvas.narrow(dim, end - before, before))
                self._receive(previous, canvas.narrow(dim, 0, before))
            if after:
                self._receive(following, canvas.narrow(dim, end, after))

    def surrounded(self, x_TYXC: Tensor) -> tuple[Tensor, int]:
        canvas = F.pad(x_TYXC, (0, 0, 1, 1, 1, 1))
        self.fill(canvas, 1, 1)
        return canvas, 0

    def everywhere(self, x_TPC: Tensor) -> Tensor:
        others = [place for place in range(len(self._boxes)) if place != self.place]
        for place in others:
            self._send(place, x_TPC)
        pixels = {self.place: x_TPC} | {place: self._taken(place).to(x_TPC.device) for place in others}
        return torch.cat([pixels[place] for place in sorted(pixels)], dim=1)

    def give_up(self) -> None:
        """Tell all other tiles not to wait for this one."""
        for box in self._boxes[self.place]:
            box.put(None)

    def forget(self) -> None:
        """Drop pixels that were sent to this tile and are not received yet."""
        for boxes in self._boxes:
            while not boxes[self.place].empty():
                boxes[self.place].get()

    def _send(self, place: int | None, pixels: Tensor) -> None:
        """Send a copy of the pixels: the next layer may overwrite them before they are received."""
        if place is not None:
            self._boxes[self.place][place].put(pixels.clone())

    def _receive(self, place: int | None, onto: Tensor) -> None:
        if place is not None:
            onto.copy_(self._taken(place))

    def _taken(self, place: int) -> Tensor:
        try:
            pixels = self._boxes[place][self.place].get(timeout=PATIENCE_S)
        except Empty:
            raise TileLost(
                f"tile {self.place} waited {PATIENCE_S:.0f} s for tile {place}; is its device alive?"
            ) from None
        if pixels is None:
            raise TileLost(f"tile {place} failed, so tile {self.place} cannot go on")
        return pixels


def _shares(x: Tensor, count: int, unit: int, dim: int) -> list[Tensor]:
    """Split as `tensor_split` does, in whole units."""
    units, rest = divmod(x.shape[dim], unit)
    assert rest == 0, f"{x.shape[dim]} pixels are no whole units of {unit}"
    sizes = [units // count + (place < units % count) for place in range(count)]
    return list(x.split([unit * size for size in sizes], dim=dim))
