"""Mean binary cross-entropy by loops."""

import math

from tests.reference.linear import descend, score, weight_gradient


def step(w, pos_x, neg_x, eta, pos_weight, balanced):
    """Loss before and weights after one step of gradient descent."""
    num_pos, num_neg = len(pos_x), len(neg_x)
    loss, grads = 0.0, []
    for x in pos_x:
        share = (0.5 / num_pos if balanced else 1.0 / (num_pos + num_neg)) * pos_weight
        p = 1.0 / (1.0 + math.exp(-score(w, x)))
        loss -= share * math.log(p)
        grads.append(share * (p - 1.0))
    for x in neg_x:
        share = 0.5 / num_neg if balanced else 1.0 / (num_pos + num_neg)
        p = 1.0 / (1.0 + math.exp(-score(w, x)))
        loss -= share * math.log(1.0 - p)
        grads.append(share * p)
    return loss, descend(w, weight_gradient(len(w), [*pos_x, *neg_x], grads), eta)
