"""A VAE split into tiles: the pictures and latents of the whole one, streaming; a tile that fails is said at
once."""

from __future__ import annotations

import time
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models.carry import VAE
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.wan.vae import WanVAE
from millstream.parallel import spatial
from millstream.parallel.spatial import SplitVAE
from millstream.parallel.tiles import Grid, choose_grid
from tests.unit.models_for_tests import relative_error, vae

CPU = torch.device("cpu")
WHOLE = {"plain": vae, "fast": lambda: FastVAE(vae())}


@torch.inference_mode()
def decoded(network: VAE, latents: Tensor) -> Tensor:
    """Two latent frames at a time."""
    state = ()
    found = []
    for part in latents.split(2, dim=1):
        pixels, state = network.decode(part, state)
        found.append(pixels)
    return torch.cat(found, dim=1)


@torch.inference_mode()
def encoded(network: VAE, pixels: Tensor) -> Tensor:
    first, state = network.encode(pixels[:, :5])
    return torch.cat([first, network.encode(pixels[:, 5:], state)[0]], dim=1)


def split(whole: WanVAE, grid: Grid) -> SplitVAE:
    return SplitVAE(whole, [CPU] * (grid.rows * grid.columns))


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_tiles_together_are_the_whole_picture_and_its_latents(kind: str, data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from([Grid(1, 2), Grid(2, 1), Grid(2, 2), Grid(1, 3), Grid(3, 2)]))
    rows, columns = (data.draw(st.integers(least, least + 2)) for least in grid)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    exact = vae()
    latents = torch.randn(1, 3, 4, rows, columns, generator=generator)
    pixels = torch.randn(1, 9, 3, 8 * rows, 8 * columns, generator=generator)
    tiles = split(WHOLE[kind](), grid)
    with mock.patch.object(spatial, "choose_grid", return_value=grid):
        assert relative_error(decoded(tiles, latents), decoded(exact, latents)) < 1e-5
        assert relative_error(encoded(tiles, pixels), encoded(exact, pixels)) < 1e-5


@pytest.mark.parametrize("kind", WHOLE)
def test_what_tiles_remember_is_their_part_of_what_the_whole_remembers(kind: str) -> None:
    latents = torch.randn(1, 2, 4, 3, 4)
    grid = Grid(2, 2)
    with torch.inference_mode(), mock.patch.object(spatial, "choose_grid", return_value=grid):
        states = split(WHOLE[kind](), grid).decode(latents)[1]
        expected = vae().decode(latents)[1]
    layers = [states[layer :: len(expected)] for layer in range(len(expected))]
    assert all(
        relative_error(grid.joined(tiles), whole) < 1e-5
        for tiles, whole in zip(layers, expected, strict=True)
    )


def test_tiles_of_one_device_share_the_weights_that_are_there() -> None:
    whole = vae()
    there = {parameter.data_ptr() for parameter in whole.parameters()}
    assert {parameter.data_ptr() for parameter in split(whole, Grid(2, 2)).parameters()} == there


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        ((60, 104), 2, (1, 2)),
        ((60, 104), 4, (2, 2)),
        ((60, 104), 8, (2, 4)),
        ((104, 60), 8, (4, 2)),
        ((6, 6), 2, (2, 1)),
        ((2, 9), 3, (1, 3)),
        ((4, 4), 1, (1, 1)),
    ],
)
def test_a_picture_is_cut_where_its_edges_are_shortest(
    size: tuple[int, int], count: int, expected: tuple[int, int]
) -> None:
    assert choose_grid(size, count) == expected


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_every_tile_has_pixels_and_they_are_all_of_them(rows: int, columns: int, count: int) -> None:
    if all(count % each or each > rows or count // each > columns for each in range(1, count + 1)):
        with pytest.raises(ConfigError, match=f"{rows}x{columns} latent cells do not make {count} tiles"):
            choose_grid((rows, columns), count)
        return
    grid = choose_grid((rows, columns), count)
    x = torch.arange(4 * rows * columns).view(2 * rows, 2 * columns)
    tiles = grid.cut(x, unit=2)
    assert len(tiles) == count
    assert all(min(tile.shape) >= 2 and not any(side % 2 for side in tile.shape) for tile in tiles)
    assert torch.equal(grid.joined(tiles), x)


def test_a_tile_that_fails_fails_all_at_once_and_the_next_pass_is_sound() -> None:
    whole = vae()
    latents = torch.randn(1, 2, 4, 4, 4)
    tiles = split(whole, Grid(2, 2))
    attention = tiles.parts[1].decoder.middle[1].whole
    sound = attention.qkv
    attention.qkv = torch.nn.Conv2d(1, 3, 1)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="channels"):
        decoded(tiles, latents)
    assert time.monotonic() - begun < 20
    attention.qkv = sound
    assert relative_error(decoded(tiles, latents), decoded(whole, latents)) < 1e-5


def test_a_vae_is_split_over_two_devices_or_more() -> None:
    with pytest.raises(ConfigError, match="2 devices or more"):
        SplitVAE(vae(), [CPU])
