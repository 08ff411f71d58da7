"""Scaling law: the loss by size of the model and number of training tokens.

``L(N, D) = E + A / N**alpha + B / D**beta``, fitted as in Hoffmann et al. 2022, "Training Compute-Optimal Large
Language Models", section 3.3 and appendix D.2: the Huber loss (delta 1e-3) between the logarithms of the predicted and
measured losses, by L-BFGS from several starts. A term whose variable is the same in all points cannot be fitted and is
left out; ``E`` then includes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

DELTA: Final = 1e-3
EXPONENTS: Final = (0.15, 0.3, 0.7)
"""Start values of a fit."""
SHARE: Final = 0.1
"""Start value of a term at the middle of the points, as a share of the mean loss."""
NAMES: Final = ("parameters", "tokens")
MIN_DISTINCT_VALUES: Final = 3
"""Required values of a term's variable: a floor and any exponent fit two."""
FLOPS_PER_PARAMETER_AND_TOKEN: Final = 6
"""Training cost, forward and backward: Kaplan et al. 2020, section 2.1."""


@dataclass(frozen=True)
class Point:
    """One training: its parameters, the tokens it was trained on, and its loss in nats per token."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class PowerTerm:
    """One falling term of the law, ``coefficient / x**exponent``."""

    coefficient: float
    exponent: float

    def at(self, x: float) -> float:
        try:
            return self.coefficient * math.pow(x, -self.exponent)
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class ScalingLaw:
    """A fitted law; None is a term that was left out.

    Attributes:
        floor: ``E``, the irreducible loss, in nats per token.
        parameters: ``A / N**alpha``.
        tokens: ``B / D**beta``.
    """

    floor: float
    parameters: PowerTerm | None
    tokens: PowerTerm | None

    def __str__(self) -> str:
        terms = (("N", self.parameters), ("D", self.tokens))
        parts = [f"{term.coefficient:.4g} / {name}**{term.exponent:.4g}" for name, term in terms if term is not None]
        return " + ".join([f"L = {self.floor:.4g}", *parts])

    def loss(self, parameters: float, tokens: float) -> float:
        """Predict the loss, in nats per token."""
        terms = ((self.parameters, parameters), (self.tokens, tokens))
        return self.floor + sum(term.at(x) for term, x in terms if term is not None)

    def best_for(self, flops: float) -> tuple[float, float] | None:
        """Return parameters and tokens of the lowest loss for this compute (equation 4); None without both terms.

        None also for a compute so far from the points that the numbers overflow.
        """
        if self.parameters is None or self.tokens is None:
            return None
        alpha, beta = self.parameters.exponent, self.tokens.exponent
        ratio = (alpha * self.parameters.coefficient) / (beta * self.tokens.coefficient)
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN
        try:
            parameters = ratio ** (1 / (alpha + beta)) * product ** (beta / (alpha + beta))
            return parameters, product / parameters
        except (OverflowError, ZeroDivisionError):
            return None


class TooFewPointsError(ValueError):
    """The points are too few or too alike for the unknowns."""


def fit_law(points: Sequence[Point]) -> ScalingLaw:
    """Fit a law to the points.

    Raises:
        TooFewPointsError: There are fewer points than unknowns, or too few different sizes or lengths.
    """
    variables = [[point.parameters for point in points], [point.tokens for point in points]]
    different = [len(set(values)) for values in variables]
    varying = [number for number, count in enumerate(different) if count > 1]
    if not varying:
        raise TooFewPointsError("A scaling law needs trainings that differ in parameters or in tokens.")
    for number in varying:
        if different[number] < MIN_DISTINCT_VALUES:
            raise TooFewPointsError(
                f"2 different numbers of {NAMES[number]} determine no curve: give trainings with one alone, or with at "
                f"least {MIN_DISTINCT_VALUES}."
            )
    if len(points) < (unknown := 1 + 2 * len(varying)):
        named = " and ".join(NAMES[number] for number in varying)
        raise TooFewPointsError(
            f"A scaling law in {named} has {unknown} unknowns, and there are {len(points)} trainings."
        )
    try:
        floor, terms = _minimise([variables[number] for number in varying], [point.loss for point in points])
    except OverflowError:
        raise TooFewPointsError(
            "The trainings are too far apart for a scaling law: leave out those that diverged."
        ) from None
    fitted = dict(zip(varying, terms, strict=True))
    return ScalingLaw(floor, fitted.get(0), fitted.get(1))


def _minimise(variables: Sequence[Sequence[float]], losses: Sequence[float]) -> tuple[float, list[PowerTerm]]:
    """Return the floor and the terms of the best fit of all starts.

    The unknowns are the logarithm of the floor, and each term's exponent and logarithm at the middle of the points.
    These two hardly depend on each other, so a few starts find what a grid finds.
    """
    import numpy as np
    from scipy.optimize import minimize
    from scipy.special import huber, logsumexp

    logs = np.log(np.asarray(variables, dtype=float))
    middles = logs.mean(axis=1)
    distances = logs - middles[:, None]
    wanted = np.log(np.asarray(losses, dtype=float))

    def error(unknowns: Any) -> tuple[float, Any]:
        """Return the sum of the Huber losses in units of ``DELTA``, and its gradient."""
        parts = np.vstack([np.full(len(wanted), unknowns[0]), unknowns[1::2, None] - unknowns[2::2, None] * distances])
        predicted = logsumexp(parts, axis=0)
        off = predicted - wanted
        pulls = np.exp(parts - predicted) * np.clip(off / DELTA, -1, 1)
        gradient = np.empty_like(unknowns)
        gradient[0], gradient[1::2] = pulls[0].sum(), pulls[1:].sum(axis=1)
        gradient[2::2] = -(pulls[1:] * distances).sum(axis=1)
        return float(huber(DELTA, off).sum()) / DELTA, gradient

    mean = float(wanted.mean())
    of_term = [(mean + math.log(SHARE), exponent) for exponent in EXPONENTS]
    starts = [[mean - 0.5, *sum(start, ())] for start in itertools.product(of_term, repeat=len(variables))]
    bounds = [(None, None), *[(None, None), (1e-3, 10.0)] * len(variables)]

    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    fits = (minimize(error, start, method="L-BFGS-B", jac=True, bounds=bounds, options=options) for start in starts)
    floor, *found = min(fits, key=lambda fit: float(fit.fun)).x
    terms = zip(found[::2], found[1::2], middles, strict=True)
    return math.exp(floor), [
        PowerTerm(math.exp(at + exponent * middle), float(exponent)) for at, exponent, middle in terms
    ]
