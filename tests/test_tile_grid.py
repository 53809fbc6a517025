"""Tiles of rows that stand anywhere: the geometry and the true attention below every sparse method."""

import pytest
import torch

from workbench.core.tiling import tile_grid
from workbench.core.tiling.tile_grid import Grid, grid_of

LENGTH = 119
ROWS = {
    "whole": torch.arange(LENGTH),
    "unaligned chunk": torch.arange(37, 70),
    "scattered": torch.tensor([0, 3, 4, 5, 17, 18, 40, 41, 42, 43, 66, 90, 91, 92, 93, 118]),
    "one row": torch.tensor([77]),
    "first row": torch.tensor([0]),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("size", [1, 8, 50])
def test_a_grid_by_hand(rows, size):
    length = int(rows[-1]) + 1
    ours = Grid(rows, length, size)
    groups = [part.tolist() for part in rows.split(size)]
    assert ours.shape == (len(groups), -(-length // size))
    pairs = ours.pairs()
    for count in (0, 1, 3, 99):
        near, tail = ours.near(count), ours.tail(count, LENGTH)
        for i, group in enumerate(groups):
            assert (int(ours.first[i]), int(ours.last[i])) == (group[0], group[-1])
            assert bool(tail[i]) == (group[-1] >= (-(-LENGTH // size) - count) * size and count > 0)
            for j in range(ours.shape[1]):
                keys = range(j * size, min(length, (j + 1) * size))
                assert bool(ours.causal[i, j]) == any(key <= row for row in group for key in keys)
                assert bool(ours.own[i, j]) == any(row in keys for row in group)
                assert bool(near[i, j]) == any(0 <= row // size - j <= count for row in group)
                assert pairs[i, j] == sum(key <= row for row in group for key in keys)


def test_true_mass_of_tiles_by_hand():
    rows = ROWS["unaligned chunk"]
    torch.manual_seed(0)
    queries, keys = torch.randn(4, len(rows), 16), torch.randn(2, 70, 16)
    ours, peak = (f(queries, keys, Grid(rows, keys.shape[1], 8)) for f in (tile_grid.mass, tile_grid.peaks))
    for head in range(4):
        share = (queries[head] @ keys[head // 2].T / 4).masked_fill(
            torch.arange(keys.shape[1]) > rows[:, None], -torch.inf
        )
        for i, part in enumerate(share.softmax(-1).split(8)):
            for j, tile in enumerate(part.split(8, 1)):
                torch.testing.assert_close(ours[head, i, j], tile.sum(1).mean())
                torch.testing.assert_close(peak[head, i, j], tile.max())


def test_a_grid_is_made_once_for_all_layers_and_anew_when_its_rows_change():
    rows = torch.arange(64, 96)
    grid = grid_of(rows, 96, 16)
    assert grid_of(rows, 96, 16) is grid
    assert grid_of(rows, 96, 32) is not grid
    assert grid_of(rows.clone(), 96, 16) is not grid
    rows -= 16
    assert grid_of(rows, 96, 16).first.tolist() == [48, 64]
    with torch.inference_mode():
        assert grid_of(torch.arange(8), 8, 4) is not grid_of(torch.arange(8), 8, 4)
