"""Two-way partial AUC from its definition: walk along the ROC polyline and integrate over the false positive rate.

Plain loops over scores, with numbers of any kind: floats, or ``Fraction`` for exact values.
"""

from itertools import pairwise
from statistics import NormalDist


def roc_vertices(pos, neg, one=1.0):
    """One vertex per distinct score, from (0, 0), counting afresh at every threshold."""
    vertices = [(0 * one, 0 * one)]
    for threshold in sorted({*pos, *neg}, reverse=True):
        tp = sum(score >= threshold for score in pos)
        fp = sum(score >= threshold for score in neg)
        vertices.append((one * fp / len(neg), one * tp / len(pos)))
    return vertices


def area_inside(vertices, min_tpr, max_fpr):
    """Area between the polyline and the line TPR = min_tpr, right of 0 and left of max_fpr."""
    area = 0
    for (x0, y0), (x1, y1) in pairwise(vertices):
        right = min(x1, max_fpr)
        if right <= x0 or y1 <= min_tpr:
            continue  # vertical, beyond the right border, or below the lower one
        slope = (y1 - y0) / (x1 - x0)
        left = x0 if y0 >= min_tpr else x0 + (min_tpr - y0) / slope
        if left < right:
            y_left, y_right = y0 + slope * (left - x0), y0 + slope * (right - x0)
            area += (right - left) * ((y_left - min_tpr) + (y_right - min_tpr)) / 2
    return area


def naive_tpauc(pos, neg, min_tpr, max_fpr, one=1.0):
    return area_inside(roc_vertices(pos, neg, one), min_tpr, max_fpr) / ((1 - min_tpr) * max_fpr)


def naive_binned_tpauc(pos, neg, thresholds, min_tpr, max_fpr):
    """The same, with vertices at the thresholds only."""
    vertices = [(0.0, 0.0)]
    for threshold in sorted(thresholds, reverse=True):
        tp = sum(score >= threshold for score in pos)
        fp = sum(score >= threshold for score in neg)
        vertices.append((fp / len(neg), tp / len(pos)))
    return area_inside([*vertices, (1.0, 1.0)], min_tpr, max_fpr) / ((1 - min_tpr) * max_fpr)


def normal_tpauc(shift, min_tpr, max_fpr, steps=20_000):
    """Population value for negatives N(0, 1) and positives N(shift, 1), by the midpoint rule over FPR."""
    normal, area = NormalDist(), 0.0
    for k in range(steps):
        fpr = max_fpr * (k + 0.5) / steps
        tpr = 1 - normal.cdf(normal.inv_cdf(1 - fpr) - shift)
        area += max(0.0, tpr - min_tpr) * max_fpr / steps
    return area / ((1 - min_tpr) * max_fpr)
