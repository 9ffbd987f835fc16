"""Rounds the rows of a matrix to few bits, so that its products change little. Numpy only.

A matrix W f32[out, in] is multiplied with rows x whose second moments are H = sum of x^T x. What
rounding to Q changes of the products is tr((W - Q) H (W - Q)^T), the error of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_SHRUNK = np.linspace(1.0, 0.45, 23, dtype=np.float32)  # of the scale that clips nothing
_COLUMNS = 128  # rounded before the columns behind them are corrected
_DAMPINGS = (0.01, 0.1, 1.0)  # of the mean moment, added to each: the first that works
_PASSES = 2

Stored = Callable[[np.ndarray], np.ndarray]  # rounds scales to the dtype that they are stored in


@dataclass(frozen=True, slots=True)
class Grid:
    """Whole numbers times a scale for each group of a row's columns."""

    bits: int
    group: int | None  # columns of a group; None: the whole row
    stored: Stored

    @property
    def least(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def groups(self, weight: np.ndarray) -> np.ndarray:
        """f32[out, groups, columns]."""
        return weight.reshape(len(weight), -1, self.group or weight.shape[1])

    def codes(self, weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Round to the nearest: the arguments must broadcast."""
        return np.clip(np.rint(weight / scales), self.least, self.most)


@dataclass(frozen=True, slots=True)
class Rounded:
    codes: np.ndarray  # i8[out, in]
    scales: np.ndarray  # f32[out, groups]

    def widened(self) -> np.ndarray:
        """f32[out, in]."""
        blocked = self.codes.astype(np.float32).reshape(*self.scales.shape, -1)
        return (blocked * self.scales[..., None]).reshape(self.codes.shape)


def error(weight: np.ndarray, moments: np.ndarray, rounded: Rounded) -> float:
    """Return tr((W - Q) H (W - Q)^T)."""
    change = weight - rounded.widened()
    return float(np.einsum("ij,ij->", change @ moments, change, dtype=np.float64))


def nearest(weight: np.ndarray, grid: Grid) -> Rounded:
    """Round every number to the nearest, with scales that clip nothing."""
    return _at(weight, grid, _whole_scales(weight, grid))


def by_importance(weight: np.ndarray, importance: np.ndarray, grid: Grid) -> Rounded:
    """Round to the nearest with the scales of least squared error, weighted by column.

    importance: f32[in], such as the mean square of what each column is multiplied with (Lin et al.
    2023, arXiv:2306.00978, find the columns that matter by their inputs; llama.cpp's importance
    matrix weighs them so).
    """
    return _at(weight, grid, _weighed_scales(weight, importance, grid))


def _at(weight: np.ndarray, grid: Grid, scales: np.ndarray) -> Rounded:
    codes = grid.codes(grid.groups(weight), scales[..., None])
    return Rounded(codes.reshape(weight.shape).astype(np.int8), scales)


def _whole_scales(weight: np.ndarray, grid: Grid) -> np.ndarray:
    highest = np.abs(grid.groups(weight)).max(-1)
    return grid.stored(np.where(highest > 0, highest, 1.0).astype(np.float32) / grid.most)


def _weighed_scales(weight: np.ndarray, importance: np.ndarray, grid: Grid) -> np.ndarray:
    blocked, whole = grid.groups(weight), _whole_scales(weight, grid)
    weights = grid.groups(np.maximum(importance, 1e-30)[None].astype(np.float32))
    best, least = whole, np.full(whole.shape, np.inf, np.float32)
    for part in _SHRUNK:
        scales = grid.stored(whole * part)
        change = blocked - grid.codes(blocked, scales[..., None]) * scales[..., None]
        made = (change * change * weights).sum(-1)
        best, least = np.where(made < least, scales, best), np.minimum(made, least)
    return best


def corrected(weight: np.ndarray, moments: np.ndarray, grid: Grid) -> Rounded:
    """Round column by column, and let those behind make up for what each one lost.

    As GPTQ (Frantar et al. 2022, arXiv:2210.17323): columns in the order of their moments, the
    largest first, with the scales of `by_importance`. Then scales of least error for the numbers
    found, and numbers again, as long as that helps. Never of more error than `nearest`.
    """
    order = np.argsort(-np.diag(moments), kind="stable")
    factor = _inverse_factor(moments, order)
    scales = _weighed_scales(weight, np.diag(moments), grid)
    found = _columns_in_order(weight, order, factor, grid, scales)
    tried = [(error(weight, moments, each), each) for each in (found, nearest(weight, grid))]
    for _ in range(_PASSES):
        fitted = _fitted_scales(weight, moments, found, grid)
        found = _columns_in_order(weight, order, factor, grid, fitted)
        tried.append((error(weight, moments, found), found))
        if tried[-1][0] >= tried[-2][0]:
            break
    return min(tried, key=lambda each: each[0])[1]


def _inverse_factor(moments: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return f32[in, in], the upper Cholesky factor of the damped inverse, in this order."""
    ordered = moments[np.ix_(order, order)].astype(np.float64)
    mean, at = float(np.mean(np.diag(ordered))) or 1.0, np.diag_indices_from(ordered)
    for damping in _DAMPINGS[:-1]:
        try:
            return _factor_of_inverse(ordered, at, damping * mean)
        except np.linalg.LinAlgError:  # rounded sums may have lost their definiteness
            continue
    return _factor_of_inverse(ordered, at, _DAMPINGS[-1] * mean)


def _factor_of_inverse(moments: np.ndarray, at: Any, added: float) -> np.ndarray:
    damped = moments.copy()
    damped[at] += added
    inverse = np.linalg.inv(damped)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)


def _columns_in_order(
    weight: np.ndarray, order: np.ndarray, factor: np.ndarray, grid: Grid, scales: np.ndarray
) -> Rounded:
    left, inputs = weight[:, order].astype(np.float32), weight.shape[1]
    group = order // (grid.group or inputs)
    codes = np.empty(weight.shape, np.int8)
    for first in range(0, inputs, _COLUMNS):
        last = min(first + _COLUMNS, inputs)
        lost = np.empty((last - first, len(weight)), np.float32)
        band = np.ascontiguousarray(left[:, first:last].T)  # columns are rows here
        for at in range(last - first):
            place = first + at
            mine = scales[:, group[place]]
            found = grid.codes(band[at], mine)
            codes[:, order[place]] = found
            lost[at] = (band[at] - found * mine) / factor[place, place]
            band[at + 1 :] -= factor[place, place + 1 : last, None] * lost[at][None]
        left[:, last:] -= lost.T @ factor[first:last, last:]
    return Rounded(codes, scales)


def _fitted_scales(
    weight: np.ndarray, moments: np.ndarray, rounded: Rounded, grid: Grid
) -> np.ndarray:
    """f32[out, groups]: of least error for these codes, one group after the other."""
    codes = rounded.codes.astype(np.float32)
    scales = rounded.scales.copy()
    size = grid.group or weight.shape[1]
    change = (weight - rounded.widened()) @ moments  # f32[out, in]
    for group in range(scales.shape[1]):
        own = slice(group * size, (group + 1) * size)
        mine = codes[:, own]
        along = mine @ moments[own]  # f32[out, in]
        square = np.einsum("ij,ij->i", along[:, own], mine)
        step = np.einsum("ij,ij->i", change[:, own], mine) / np.maximum(square, 1e-30)
        moved = np.where(square > 0, grid.stored(scales[:, group] + step), scales[:, group])
        moved = np.where(moved > 0, moved, scales[:, group])
        change -= along * (moved - scales[:, group])[:, None]
        scales[:, group] = moved
    return scales
