"""The exact objective and its CVaR and min-max forms by sorting lists and by trying all breakpoints.

Fractions keep theta n exact: 1 - 0.9 is one tenth here.
"""

import math
from fractions import Fraction

from tests.reference.pairwise import loss_matrix


def fractions_of(min_tpr, max_fpr):
    """theta_0 and theta_1 as the decimal numbers that were written."""
    return 1 - Fraction(str(min_tpr)), Fraction(str(max_fpr))


def objective_loops(pos, neg, min_tpr, max_fpr, name, margin=0.5, scale=1.0):
    """Eq. tpauc-o over k1 k2: the lowest positives against the highest negatives."""
    theta0, theta1 = fractions_of(min_tpr, max_fpr)
    lowest = sorted(pos)[: math.floor(theta0 * len(pos))]
    highest = sorted(neg, reverse=True)[: math.floor(theta1 * len(neg))]
    losses = [v for row in loss_matrix(lowest, highest, name, margin, scale) for v in row]
    return math.fsum(losses) / len(losses)


def inner(losses, s, theta1):
    """g_i(w, s_i) for one positive's losses."""
    return s + math.fsum(max(v - s, 0.0) for v in losses) / len(losses) / float(theta1)


def outer(g, s_prime, theta0):
    """The mean over i of f(g_i, s')."""
    return s_prime + math.fsum(max(v - s_prime, 0.0) for v in g) / len(g) / float(theta0)


def minimal_inner(losses, theta1):
    """min over s_i: the function is convex and piecewise linear, so one of its breakpoints is a minimiser."""
    return min(inner(losses, s, theta1) for s in losses)


def cvar_objective(pos, neg, min_tpr, max_fpr, name, margin=0.5, scale=1.0):
    """min over s and s' of the CVaR form."""
    theta0, theta1 = fractions_of(min_tpr, max_fpr)
    g = [minimal_inner(row, theta1) for row in loss_matrix(pos, neg, name, margin, scale)]
    return min(outer(g, s_prime, theta0) for s_prime in g)


def min_max_value(pos, neg, s, y, s_prime, min_tpr, max_fpr, name, margin=0.5, scale=1.0):
    """The min-max form at given dual variables."""
    theta0, theta1 = fractions_of(min_tpr, max_fpr)
    rows = loss_matrix(pos, neg, name, margin, scale)
    terms = [yi * (inner(row, si, theta1) - s_prime) for row, si, yi in zip(rows, s, y, strict=True)]
    return s_prime + math.fsum(terms) / len(pos) / float(theta0)
