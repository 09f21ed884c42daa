"""Prints the coefficients of `ferrite_runtime.fmath.erf_narrow` and the error they give in float32.

``erf(x) = x * P(x*x) / Q(x*x)`` on ``|x| <= 3.92`` (beyond, erf rounds to one in float32), with the relative error made
nearly equal everywhere by iteratively reweighted least squares (Lawson's algorithm: C. L. Lawson, "Contributions to the
Theory of Linear Least Maximum Approximation", 1961) on the linearised problem ``P - erf(x)/x * Q = 0``.

Needs numpy. Run it as ``python fit_erf.py``.
"""

from math import erf

import numpy as np

END = 3.92
LAST = 4.1
"""Where the formula is above one by more than its error; from there on it stays, and is cut to one."""
NUMERATOR, DENOMINATOR = 6, 4


def fit(points: int = 4000, rounds: int = 200) -> tuple[list[float], list[float]]:
    """Returns the coefficients of P and Q, lowest power first, rounded to float32."""
    x = END / 2 * (1 - np.cos(np.pi * (np.arange(points) + 0.5) / points))
    x = x[x > 1e-4]
    t = (x / END) ** 2
    wanted = np.array([erf(value) / value for value in x])
    weights, scale = np.ones_like(x), np.ones_like(x)
    best_error, best = np.inf, np.zeros(NUMERATOR + DENOMINATOR + 1)
    columns = [t**i for i in range(NUMERATOR + 1)] + [-wanted * t**i for i in range(1, DENOMINATOR + 1)]
    matrix = np.stack(columns, axis=1)
    for _ in range(rounds):
        row = np.sqrt(weights) / (wanted * scale)
        solution = np.linalg.lstsq(matrix * row[:, None], wanted * row, rcond=None)[0]
        upper = np.polynomial.polynomial.polyval(t, solution[: NUMERATOR + 1])
        lower = np.polynomial.polynomial.polyval(t, [1.0, *solution[NUMERATOR + 1 :]])
        error = np.abs(upper / lower / wanted - 1)
        if error.max() < best_error:
            best_error, best = error.max(), solution.copy()
        scale, weights = lower, weights * (error / error.max() + 1e-3)
        weights /= weights.sum()
    p = [float(np.float32(c / END ** (2 * i))) for i, c in enumerate(best[: NUMERATOR + 1])]
    q = [1.0, *(float(np.float32(c / END ** (2 * i))) for i, c in enumerate(best[NUMERATOR + 1 :], start=1))]
    return p, q


def worst_error(p: list[float], q: list[float]) -> float:
    """Returns the largest relative error of the formula evaluated in float32."""
    x = np.concatenate([np.linspace(1e-3, 6, 400_001), np.logspace(-6, 0, 100_000)]).astype(np.float32)
    clamped = np.minimum(x, np.float32(LAST))
    t = clamped * clamped

    def horner(coefficients: list[float]) -> np.ndarray:
        total = np.full_like(t, np.float32(coefficients[-1]))
        for c in reversed(coefficients[:-1]):
            total = total * t + np.float32(c)
        return total

    exact = np.array([erf(float(value)) for value in x])
    found = np.minimum(clamped * horner(p) / horner(q), np.float32(1))
    assert (found[x >= LAST] == 1).all()
    return float(np.max(np.abs(found - exact) / exact))


if __name__ == "__main__":
    upper, lower = fit()
    print("P", upper)
    print("Q", lower)
    print(f"largest relative error in float32: {worst_error(upper, lower):.2e}")
