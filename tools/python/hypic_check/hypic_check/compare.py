"""How far a tensor is from its answer, and how far it may be: the rules of hypic conformance (docs/conformance.md)."""
import math
from dataclasses import dataclass

import numpy as np

MAX_OVER_RMS = 8  # no element differs by more than this many times its group's bound times its group's largest value
ROUNDINGS = 8     # nor an ill-conditioned result by more than this many times what one rounding of the inputs moves
ROUNDOFF = {"float64": 2.0 ** -53, "float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}
SMALLEST = {"float64": 2.0 ** -1022, "float32": 2.0 ** -126, "float16": 2.0 ** -14, "bfloat16": 2.0 ** -126}


def tolerance(dtype, repeated=False):
    """Of an RMS error ratio. repeated: one input over and over on slow heads, where roundings add up."""
    return {"float64": 5e-11 if repeated else 1e-12, "float32": 5e-4 if repeated else 1e-5}.get(dtype, 6e-3)


@dataclass
class Comparison:
    rms: float = 0.0     # RMS error ratio of the group that is nearest to its bound
    bound: float = 0.0   # of that group
    max_abs: float = 0.0
    cosine: float = 1.0  # the smallest of a group
    wrong: str = ""      # empty where it holds, else the first bad element and why


def _versus(got, want, index, axis):
    """Of arrays whose groups come first: the place of an element as the caller counts."""
    place = [int(i) for i in index[1:]]
    place.insert(axis, int(index[0]))
    texts = [f"{x[index]:.4g}" for x in (got, want)]
    if texts[0] == texts[1]:  # all digits, where four do not tell them apart
        texts = [repr(float(x[index])) for x in (got, want)]
    return f"{place} is {texts[0]}, expected {texts[1]}"


def compare(got, want, axis, bounds, floors):
    """float64 arrays; groups are the indices of `axis`, with a bound and a floor (what errors are at least relative to)
    each. NaN and infinities must stand at the same places."""
    got, want = np.moveaxis(got, axis, 0), np.moveaxis(want, axis, 0)
    bounds, floors = np.asarray(bounds, np.float64), np.asarray(floors, np.float64)
    same = np.where(np.isnan(want), np.isnan(got), np.where(np.isfinite(want), np.isfinite(got), got == want))
    if not same.all():
        first = tuple(np.argwhere(~same)[0])
        return Comparison(math.inf, float(bounds[first[0]]), math.inf, 0.0, _versus(got, want, first, axis))
    if want.size == 0:
        return Comparison()
    finite = np.isfinite(want)
    x, y = (np.where(finite, a, 0.0).reshape(len(want), -1) for a in (got, want))
    error = np.abs(x - y)
    difference, size, own = ((a * a).sum(1) for a in (x - y, y, x))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(difference) / np.maximum(np.sqrt(size), floors)
        cosine = (x * y).sum(1) / np.sqrt(size * own)
    ratio = np.where(difference == 0, 0.0, ratio)
    cosine = np.where((np.sqrt(size) > floors) & (size > 0) & (own > 0), cosine, 1.0)
    top = np.maximum(np.abs(y).max(1), floors)
    far = error > MAX_OVER_RMS * (bounds * top)[:, None]
    bad = (ratio > bounds) | (1 - cosine > np.maximum(2 * bounds * bounds, 1e-12))
    worst = int(np.argmax(ratio / bounds))
    result = Comparison(float(ratio[worst]), float(bounds[worst]), float(error.max()), float(cosine.min()))
    if far.any() or bad.any():
        group = int(np.argmax(far.any(1))) if far.any() else int(np.argmax(bad))
        element = int(np.argmax(far[group])) if far.any() else int(np.argmax(error[group]))
        index = (group,) + np.unravel_index(element, want.shape[1:])
        result.wrong = f"{_versus(got, want, index, axis)}; RMS ratio {ratio[group]:.4g}, at most {bounds[group]:.4g}"
    return result
