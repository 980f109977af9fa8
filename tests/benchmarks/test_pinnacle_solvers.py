"""The numerical solutions of the study of PINNacle, against exact ones."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.pinnacle_solvers import CutCells, heat_2d_cg, interpolated, poisson_3d, random_field, wave_2d_cg


def test_open_parts_of_cells_and_surfaces():
    cells = CutCells.of([-1.0, 0.0], [1.0, 3.0], [40, 60], [(0.1, 1.2, 0.7)])
    assert cells.volumes.sum() * cells.step.prod() == pytest.approx(6.0 - np.pi * 0.49, rel=1e-4)
    assert cells.surfaces().sum() == pytest.approx(1.4 * np.pi, rel=1e-3)


def test_a_constant_is_the_solution_between_closed_surfaces():
    places, found = poisson_3d(lambda x, y, z: 64.0 + 0.0 * x, (64.0, 64.0), [(0.4, 0.3, 0.6, 0.2)], 12)
    assert (np.linalg.norm(places - [0.4, 0.3, 0.6], axis=1) > 0.2).all()
    np.testing.assert_allclose(found["u"], 1.0, rtol=1e-6)


def test_heat_flows_in_as_much_as_is_given():
    """Far from the disc a wall warms as a half space does, with 1 - exp(t) erfc(sqrt(t)) on its surface."""
    from scipy.special import erfcx

    places, found = heat_2d_cg([(0.0, 0.0, 0.4)], [0.0], 1.0, step=0.2, steps=100)
    t, x, y = places.T
    beside = (t > 2.9) & (x < -7.8) & (abs(y) < 5.0)
    depth, end = x[beside] + 8.0, 3.0
    a, b = depth / (2.0 * np.sqrt(end)), np.sqrt(end)
    exact = np.exp(-(a**2)) * (erfcx(a) - erfcx(a + b))
    np.testing.assert_allclose(found["u"][beside], exact, rtol=1e-3)


def test_a_standing_wave():
    places, found = wave_2d_cg(lambda x, y: 4.0 + 0.0 * x, lambda x, y: np.cos(np.pi * x), 100)
    t, x, _ = places.T
    np.testing.assert_allclose(found["u"], np.cos(np.pi * x) * np.cos(2.0 * np.pi * t), atol=5e-3)


def test_the_random_field_has_mean_0_and_deviation_1_and_is_interpolated():
    field = random_field()
    assert field.shape == (256, 256)
    assert field.mean() == pytest.approx(0.0, abs=1e-12)
    assert field.std() == pytest.approx(1.0)
    k = np.array([0, 3, 254, 255])
    np.testing.assert_allclose(interpolated(field, k / 255.0, k[::-1] / 255.0), field[k, k[::-1]], rtol=1e-9)
