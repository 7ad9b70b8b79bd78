"""Hilbert's curve against one that is put together from four smaller ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.errors import InvalidOption
from meander_lab.apps.hilbert import LARGEST_ORDER, Box, cell_of, hilbert, unhilbert


def curve(order):
    """The cells in the order of the curve: four of the next smaller one, the first and the last of them turned."""
    if order == 0:
        return [(0, 0)]
    half, part = 2 ** (order - 1), curve(order - 1)
    return [
        *((y, x) for x, y in part),
        *((x, half + y) for x, y in part),
        *((half + x, half + y) for x, y in part),
        *((2 * half - 1 - y, half - 1 - x) for x, y in part),
    ]


def test_the_smallest_curves_are_those_drawn_by_hand():
    assert hilbert(0, 0, 0) == 0
    assert [t.tolist() for t in unhilbert([0, 1, 2, 3], 1)] == [[0, 0, 1, 1], [0, 1, 1, 0]]
    # y from top to bottom, as one sees it.
    drawn = [[5, 6, 9, 10], [4, 7, 8, 11], [3, 2, 13, 12], [0, 1, 14, 15]]
    x, y = np.meshgrid(np.arange(4), np.arange(4)[::-1])
    assert hilbert(x, y, 2).tolist() == drawn


@pytest.mark.parametrize("order", range(7))
def test_every_cell_comes_once_and_as_in_the_curve_of_four_smaller_ones(order):
    x, y = unhilbert(np.arange(4**order), order)
    assert [*zip(x.tolist(), y.tolist(), strict=True)] == curve(order)
    assert sorted(hilbert(*np.indices((2**order, 2**order)), order).ravel().tolist()) == [*range(4**order)]


@given(st.integers(1, LARGEST_ORDER), st.data())
def test_neighbours_on_the_curve_are_neighbours_in_the_plane(order, data):
    first = data.draw(st.integers(0, 4**order - 2))
    x, y = unhilbert([first, first + 1], order)
    assert abs(x[1] - x[0]) + abs(y[1] - y[0]) == 1


@given(st.integers(1, LARGEST_ORDER), st.data())
def test_there_and_back_is_where_one_was(order, data):
    cells = st.integers(0, 2**order - 1)
    places = data.draw(st.lists(st.tuples(cells, cells), min_size=1, max_size=20))
    x, y = np.array(places).T
    number = hilbert(x, y, order)
    assert number.dtype == np.int64
    assert number.min() >= 0
    assert number.max() < 4**order
    assert [t.tolist() for t in unhilbert(number, order)] == [x.tolist(), y.tolist()]


@pytest.mark.parametrize("coarser", [1, 2, 5])
def test_the_number_of_a_coarser_cell_begins_that_of_the_cells_in_it(coarser):
    number = np.arange(4**6)
    x, y = unhilbert(number, 6)
    assert hilbert(x >> coarser, y >> coarser, 6 - coarser).tolist() == (number >> 2 * coarser).tolist()


def test_shapes_are_kept_and_a_number_goes_with_many():
    assert hilbert(np.arange(8)[:, None], np.arange(8), 3).shape == (8, 8)
    assert hilbert(3, [1, 2, 3], 3).tolist() == [int(hilbert(3, y, 3)) for y in (1, 2, 3)]
    assert hilbert([], [], 3).tolist() == []


def test_a_place_belongs_to_the_cell_around_it_and_one_outside_to_the_edge():
    box = Box(100.0, -2.0, 108.0, 2.0)  # cells of 2 by 1 degrees
    for lon, lat, x, y in (
        (100.0, -2.0, 0, 0),
        (101.999, -1.001, 0, 0),
        (102.0, -1.0, 1, 1),
        (107.9, 0.5, 3, 2),
        (108.0, 2.0, 3, 3),
        (250.0, -80.0, 3, 0),
        (-10.0, 0.0, 0, 2),
    ):
        assert cell_of(lon, lat, box, 2) == curve(2).index((x, y)), (lon, lat)
    middles = [(101 + 2 * x, -1.5 + y) for x, y in curve(2)]
    assert cell_of(*np.array(middles).T, box, 2).tolist() == [*range(16)]


def test_what_makes_no_sense_is_refused():
    box = Box(0.0, 0.0, 1.0, 1.0)
    for wrong, said in (
        (lambda: hilbert(4, 0, 2), "x must be whole numbers from 0 to 3; raise the order"),
        (lambda: hilbert(0, [1, -1], 2), "y must be whole"),
        (lambda: hilbert(0.5, 1, 2), "x must be whole"),
        (lambda: unhilbert(16, 2), "the number must be whole numbers from 0 to 15"),
        (lambda: hilbert(0, 0, 32), "order is 32"),
        (lambda: cell_of(np.nan, 0, box, 2), "lon must be finite"),
        (lambda: cell_of(0, 0, Box(0, 1, 1, 1), 2), "from 1 to 1 in lat"),
    ):
        with pytest.raises(InvalidOption, match=said):
            wrong()
