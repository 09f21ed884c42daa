"""Prints `ferrite_runtime/fmath/tables.py`: the coefficients of the special functions, our own fits.

Most tables hold the Chebyshev coefficients of a smooth part of a function, in a variable that runs through [-1, 1];
`FITS` says which part. They are interpolated at Chebyshev nodes with forty digits and cut where the rest is below 2e-17
of the largest value. Those named ``TEMME`` hold the coefficients of the uniform expansion of the incomplete gamma
functions, from the recurrence in N. M. Temme, "The asymptotic expansion of the incomplete gamma
functions" (1979).

Needs mpmath. Run it as ``python fit_special.py > ../src/ferrite_runtime/fmath/tables.py``.
"""

from collections.abc import Callable

import mpmath as mp
from mpmath import mpf

mp.mp.dps = 40
Part = Callable[[mpf], mpf]


def fit(part: Part, low: mpf, high: mpf, nodes: int = 56) -> list[float]:
    """Returns the Chebyshev coefficients of a part on [low, high]."""
    angles = [mp.pi * (k + mpf(1) / 2) / nodes for k in range(nodes)]
    values = [part(low + (high - low) * (mp.cos(angle) + 1) / 2) for angle in angles]
    terms = [
        2 * mp.fsum(value * mp.cos(j * angle) for value, angle in zip(values, angles, strict=True)) / nodes
        for j in range(nodes)
    ]
    terms[0] /= 2
    limit = 2e-17 * max(abs(value) for value in values)
    while abs(terms[-1]) < limit:
        terms.pop()
    if len(terms) > nodes - 8:
        raise ValueError(f"{len(terms)} terms are not enough")
    return [float(term) for term in terms]


def hankel(order: int) -> tuple[Part, Part]:
    """Returns the parts of the Bessel functions beyond 5, in ``(5/x)**2``: of the cosine, and x times of the sine."""

    def parts(u: mpf) -> tuple[mpf, mpf]:
        x = 5 / mp.sqrt(u)
        phase = x - mp.pi * order / 2 - mp.pi / 4
        j, y, size = mp.besselj(order, x), mp.bessely(order, x), mp.sqrt(mp.pi * x / 2)
        return size * (j * mp.cos(phase) + y * mp.sin(phase)), x * size * (y * mp.cos(phase) - j * mp.sin(phase))

    return lambda u: parts(u)[0], lambda u: parts(u)[1]


ZETA_2, ZETA_4 = mpf(2) / 3 * mp.sqrt(8), mpf(16) / 3
"""The exponents of Airy's function at 2 and 4, where its expansions begin."""


def _airy_far(u: mpf) -> mpf:
    zeta = ZETA_2 / u
    x = mp.cbrt((mpf(3) / 2 * zeta) ** 2)
    return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * mp.sqrt(mp.sqrt(x)) * mp.exp(zeta)


def _airy_waves(u: mpf) -> tuple[mpf, mpf]:
    zeta = ZETA_4 / mp.sqrt(u)
    x = mp.cbrt((mpf(3) / 2 * zeta) ** 2)
    size = mp.sqrt(mp.pi) * mp.sqrt(mp.sqrt(x))
    ai, bi = mp.airyai(-x) * size, mp.airybi(-x) * size
    cosine, sine = mp.cos(zeta - mp.pi / 4), mp.sin(zeta - mp.pi / 4)
    return cosine * ai - sine * bi, (sine * ai + cosine * bi) * zeta


def quantile(p: mpf) -> mpf:
    """Returns the inverse of the normal distribution, for p below one half."""
    x = -mp.sqrt(-2 * mp.log(p)) if p < 0.02 else mp.sqrt(2) * mp.erfinv(2 * p - 1)
    for _ in range(60):
        step = (mp.ncdf(x) - p) / mp.npdf(x)
        x -= step / (1 + x * step / 2)
        if abs(step) < mpf(10) ** -36:
            break
    return x


def _quantile_centre(square: mpf) -> mpf:
    y = mp.sqrt(square)
    return mp.sqrt(2) * mp.erfinv(2 * y) / y


def _quantile_tail(inverse: mpf) -> mpf:
    t = 1 / inverse
    return (t - mp.log(t) / t + quantile(mp.exp(-t * t / 2))) * t


def _y0_rest(w: mpf) -> mpf:
    x = mp.sqrt(w)
    return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)


def _y1_rest(w: mpf) -> mpf:
    x = mp.sqrt(w)
    return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def _k0_rest(w: mpf) -> mpf:
    x = mp.sqrt(w)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


def _k1_rest(w: mpf) -> mpf:
    x = mp.sqrt(w)
    return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))


def _k_far(order: int) -> Part:
    return lambda u: mp.sqrt(2 / u) * mp.exp(2 / u) * mp.besselk(order, 2 / u)


J0_ZERO, J1_ZERO = mp.besseljzero(0, 1) ** 2, mp.besseljzero(1, 1) ** 2

FITS: dict[str, tuple[str, Part, float, float]] = {
    "J0_NEAR": (
        "J0(x) / (x*x - its first zero), x*x in [0, 25]",
        lambda w: mp.besselj(0, mp.sqrt(w)) / (w - J0_ZERO),
        0,
        25,
    ),
    "J1_NEAR": (
        "J1(x) / (x*(x*x - its first zero)), x*x in [0, 25]",
        lambda w: mp.besselj(1, mp.sqrt(w)) / (mp.sqrt(w) * (w - J1_ZERO)),
        0,
        25,
    ),
    "Y0_NEAR": ("Y0(x) - 2/pi ln(x) J0(x), x*x in [0, 25]", _y0_rest, 0, 25),
    "Y1_NEAR": ("(Y1(x) - 2/pi (ln(x) J1(x) - 1/x)) / x, x*x in [0, 25]", _y1_rest, 0, 25),
    "BESSEL0_EVEN": ("the factor of cos(x - pi/4) in J0, (5/x)**2 in [0, 1]", hankel(0)[0], 0, 1),
    "BESSEL0_ODD": ("x times the factor of -sin(x - pi/4) in J0, (5/x)**2 in [0, 1]", hankel(0)[1], 0, 1),
    "BESSEL1_EVEN": ("the factor of cos(x - 3 pi/4) in J1, (5/x)**2 in [0, 1]", hankel(1)[0], 0, 1),
    "BESSEL1_ODD": ("x times the factor of -sin(x - 3 pi/4) in J1, (5/x)**2 in [0, 1]", hankel(1)[1], 0, 1),
    "K0_NEAR": ("K0(x) + ln(x/2) I0(x), x*x in [0, 4]", _k0_rest, 0, 4),
    "K1_NEAR": ("x (K1(x) - ln(x/2) I1(x)), x*x in [0, 4]", _k1_rest, 0, 4),
    "I0_NEAR": ("I0(x), x*x in [0, 4]", lambda w: mp.besseli(0, mp.sqrt(w)), 0, 4),
    "I1_NEAR": ("I1(x) / x, x*x in [0, 4]", lambda w: mp.besseli(1, mp.sqrt(w)) / mp.sqrt(w), 0, 4),
    "K0_FAR": ("sqrt(x) exp(x) K0(x), 2/x in [0, 1]", _k_far(0), 0, 1),
    "K1_FAR": ("sqrt(x) exp(x) K1(x), 2/x in [0, 1]", _k_far(1), 0, 1),
    "AIRY_NEAR": ("Ai(x), x in [-4, 2]", mp.airyai, -4, 2),
    "AIRY_FAR": ("Ai(x) 2 sqrt(pi) x**(1/4) exp(z), z = 2/3 x**(3/2), z(2)/z in [0, 1]", _airy_far, 0, 1),
    "AIRY_EVEN": ("the factor of cos(z - pi/4) in Ai(-x), (z(4)/z)**2 in [0, 1]", lambda u: _airy_waves(u)[0], 0, 1),
    "AIRY_ODD": ("z times that of sin(z - pi/4) in Ai(-x), (z(4)/z)**2 in [0, 1]", lambda u: _airy_waves(u)[1], 0, 1),
    "QUANTILE_CENTRE": ("the quantile of 1/2 + y over y, y*y in [0, 0.1225]", _quantile_centre, 0, 0.1225),
    "QUANTILE_TAIL": (
        "t (t - ln(t) / t + quantile of p), t = sqrt(-2 ln p), 1/t in [1/8, 0.52]",
        _quantile_tail,
        1 / 8,
        0.52,
    ),
    "QUANTILE_FAR": ("the same, 1/t in [1/40, 1/8]", _quantile_tail, 1 / 40, 1 / 8),
    "LOG_GAMMA": ("lgamma(1 + a) / a, a in [0, 1]", lambda a: mp.loggamma(1 + a) / a, 0, 1),
}


def temme(orders: tuple[int, ...]) -> list[list[float]]:
    """Returns the Taylor coefficients in eta of the first coefficients of the expansion in 1/a, so many of each."""
    size = max(orders) + 2 * len(orders) + 4
    alpha = [mpf(0)] * (size + 1)  # of mu as a series in eta
    alpha[1] = mpf(1)
    for n in range(2, size + 1):
        # From eta = d(mu)/d(eta) * mu / (1 + mu): compare the coefficients of eta**n.
        inner = mp.fsum(alpha[j] * alpha[n - j + 1] * (n - j + 1) for j in range(2, n))
        alpha[n] = (alpha[n - 1] - inner) / (n + 1)
    logarithm = [mpf(0)] * (len(orders) + 1)
    for k in range(1, len(orders) + 1):
        logarithm[k] = mp.bernoulli(k + 1) / (k * (k + 1)) if k % 2 else mpf(0)
    gamma = [mpf(1)]
    for k in range(1, len(orders) + 1):
        gamma.append(mp.fsum(j * logarithm[j] * gamma[k - j] for j in range(1, k + 1)) / k)
    rows = [[mpf(-1) / 3] + [(n + 2) * alpha[n + 2] for n in range(1, size - 1)]]
    for k in range(1, len(orders)):
        above = rows[-1]
        rows.append([(-1) ** k * gamma[k] * rows[0][n] + (n + 2) * above[n + 2] for n in range(len(above) - 2)])
    return [[float(term) for term in row[:count]] for row, count in zip(rows, orders, strict=True)]


TEMME_ORDERS = (19, 16, 14, 12, 10, 8, 6, 4)

HEAD = '''"""Coefficients of the special functions; ``tools/fit_special.py`` writes them and says how they are made."""

from __future__ import annotations

import triton.language as tl
'''


def print_table(name: str, meaning: str, terms: list[float]) -> None:
    """Prints one table, with what it holds in a comment."""
    print(f"\n# {meaning}\n{name} = tl.constexpr(\n    (")
    for term in terms:
        print(f"        {term!r},")
    print("    )\n)")


def main() -> None:
    """Prints the module."""
    print(HEAD, end="")
    for name, (meaning, part, low, high) in FITS.items():
        print_table(name, meaning, fit(part, mpf(low), mpf(high)))
    bernoulli = [mp.bernoulli(2 * k) for k in range(13)]
    euler = [float(bernoulli[k] / mp.factorial(2 * k)) for k in range(1, 13)]
    print_table("EULER_MACLAURIN", "B(2k) / (2k)!, k from 1: the corrections of Euler and Maclaurin's summation", euler)
    stirling = [float(bernoulli[k] / (2 * k * (2 * k - 1))) for k in range(9, 0, -1)]
    print_table("STIRLING", "Stirling's series of ln gamma in 1/a**2, highest power first", stirling)
    arctangent = [1.0 / (2 * k + 1) for k in range(12, 0, -1)]
    print_table("ATANH", "the series of the inverse hyperbolic tangent from its cubic term, highest first", arctangent)
    for k, row in enumerate(temme(TEMME_ORDERS)):
        print_table(f"TEMME{k}", f"the coefficient of a**-{k} as a polynomial of eta, highest power first", row[::-1])


if __name__ == "__main__":
    main()
