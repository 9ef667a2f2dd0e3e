"""Thresholds with a confidence: how often their demand is broken for the population that the examples were drawn from.

A population is a list of scores, so that its rates are counts, whatever the scores are.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lightning_tpauc.errors import ArgumentError, TooFewExamplesError, TPAUCWarning, silent
from lightning_tpauc.functional import decision_threshold
from lightning_tpauc.functional.operating_points import allowed_errors

DRAWS = 2000


def normal(shift):
    return torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000) + shift


def cauchy(shift):
    return (math.pi * ((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000 - 0.5)).tan() + shift


SCORES = {
    "normal": normal,
    "heavy tails": cauchy,
    "ties": lambda shift: (2 * normal(shift)).round(),
    "float16": lambda shift: normal(shift + 100).half(),  # steps of a sixteenth
    "bfloat16": lambda shift: normal(shift + 8).bfloat16(),
}


def broken(kind, num_pos, num_neg, min_tpr, max_fpr, criterion, confidence=0.95):
    """Shares of draws in which each demand is broken, and in which any is, where the result claims them."""
    generator = torch.Generator().manual_seed(num_pos + num_neg)
    pos, neg = SCORES[kind](2.5), SCORES[kind](0)
    target = torch.cat([torch.ones(num_pos, dtype=torch.long), torch.zeros(num_neg, dtype=torch.long)])
    found = []
    for _ in range(DRAWS):
        drawn = [own[torch.randint(len(own), (n,), generator=generator)] for own, n in ((pos, num_pos), (neg, num_neg))]
        with silent():
            chosen = decision_threshold(
                torch.cat(drawn), target, min_tpr, max_fpr, criterion, validate_args=False, confidence=confidence
            )
        tpr, fpr = (float((own.double() >= chosen.threshold).double().mean()) for own in (pos, neg))
        claims = chosen.guaranteed if confidence else ("max_fpr", "min_tpr")
        found.append((fpr > max_fpr and "max_fpr" in claims, tpr < min_tpr and "min_tpr" in claims, *claims))
    fpr, tpr = (np.mean([each[k] for each in found]) for k in (0, 1))
    return fpr, tpr, np.mean([each[0] or each[1] for each in found])


CELLS = [
    *(("normal", 100, n, 0.0, 0.1, "max_sensitivity") for n in (200, 500, 2000)),
    *(("normal", 100, n, 0.0, 0.02, "max_sensitivity") for n in (200, 2000)),
    *(("normal", n, 200, 0.9, 1.0, "max_specificity") for n in (50, 100, 200, 1000)),
    *((kind, 100, 200, 0.9, 1.0, "max_specificity") for kind in SCORES if kind != "normal"),
    *(("normal", 200, 500, 0.85, 0.15, criterion) for criterion in ("youden", "max_sensitivity", "max_specificity")),
    *((kind, 200, 500, 0.7, 0.1, "max_sensitivity") for kind in SCORES if kind != "normal"),
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_demand_is_broken_in_at_most_one_of_twenty_draws(cell):
    assert broken(*cell)[2] <= 0.06


@pytest.mark.slow
def test_without_a_confidence_it_is_broken_often():
    """So that the simulation above can see it."""
    assert broken("normal", 100, 200, 0.0, 0.02, "max_sensitivity", None)[0] > 0.5


@pytest.mark.parametrize("num", [1, 28, 29, 150, 2000])
@pytest.mark.parametrize(("rate", "risk"), [(0.1, 0.05), (0.02, 0.05), (0.5, 0.025), (0.3, 0.2)])
def test_the_allowed_errors_are_the_most_that_the_binomial_distribution_makes_unlikely(num, rate, risk):
    unlikely = [c for c in range(num) if binom.cdf(c, num, rate) <= risk]
    assert allowed_errors(num, rate, risk) == (unlikely[-1] if unlikely else -1)


def in_groups(num_groups, size, together, generator):
    """Rows of groups: each is in one class, and its scores share a part."""
    target = torch.arange(num_groups).fmod(2).repeat_interleave(size)
    own, shared = (torch.randn(n, generator=generator) for n in (num_groups * size, num_groups))
    scores = math.sqrt(together) * shared.repeat_interleave(size) + math.sqrt(1 - together) * own
    return scores + 2.5 * target, target, torch.arange(num_groups).repeat_interleave(size)


@pytest.mark.slow
@pytest.mark.parametrize("together", [0.0, 0.6, 1.0])
def test_groups_count_as_one_draw_each(together):
    """Eight rows of a patient: taken for independent they break the demand, as groups they keep it."""
    generator, limit = torch.Generator().manual_seed(8), float(torch.special.ndtri(torch.tensor(0.9)))
    shares = []
    for _ in range(600):
        scores, target, groups = in_groups(200, 8, together, generator)
        arguments = {"criterion": "max_sensitivity", "validate_args": False, "confidence": 0.95}
        for given in (groups, None):
            chosen = decision_threshold(scores, target, 0.0, 0.1, groups=given, **arguments)
            shares.append(chosen.threshold < limit)  # a lower one has more false alarms than a tenth
    as_groups, as_rows = np.mean(shares[::2]), np.mean(shares[1::2])
    assert as_groups <= 0.05
    assert as_rows > 0.1 or together == 0.0


def test_groups_of_one_example_change_nothing_and_may_have_any_names():
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (300,), generator=generator)
    scores = torch.randn(300, generator=generator) + 2 * target
    plain = decision_threshold(scores, target, 0.7, 0.3, confidence=0.9)
    assert plain.guaranteed == ("max_fpr", "min_tpr")
    names = np.array([f"P{k}" for k in range(300)])
    assert decision_threshold(scores, target, 0.7, 0.3, confidence=0.9, groups=names) == plain
    with pytest.raises(ArgumentError, match="group of each of the 300 examples, but got 299"):
        decision_threshold(scores, target, groups=names[1:], confidence=0.9)


@pytest.mark.parametrize(
    ("num_pos", "num_neg", "demands", "words", "allowed", "confidence"),
    [
        (50, 120, (0.0, 0.02), "FPR <= 0.02 at 95% confidence takes 149 negatives, ", (0.0, 0.025), 0.911),
        (20, 500, (0.9, 1.0), "TPR >= 0.9 at 95% confidence takes 29 positives, ", (0.86, 1.0), 0.878),
        (9, 500, (0.9, 0.5), "TPR >= 0.9 at 95% confidence takes 36 positives, ", (0.663, 0.5), 0.225),
    ],
)
def test_too_few_examples_are_named_with_what_they_allow(num_pos, num_neg, demands, words, allowed, confidence):
    target = torch.tensor([1] * num_pos + [0] * num_neg)
    scores = torch.arange(num_pos + num_neg).flip(0)
    enough = f"FPR <= {allowed[1]}" if "FPR" in words else f"TPR >= {allowed[0]}"
    have = num_neg if "FPR" in words else num_pos
    with pytest.raises(TooFewExamplesError) as raised:
        decision_threshold(scores, target, *demands, confidence=0.95)
    assert (
        str(raised.value)
        == f"{words}and there are {have}, which allow {enough}, or {100 * confidence:.3g}% confidence."
    )
    # what it says holds, and a thousandth more does not
    assert decision_threshold(scores, target, *allowed, confidence=0.95).guaranteed
    assert decision_threshold(scores, target, *demands, confidence=confidence).guaranteed
    more = (allowed[0], allowed[1] - 0.001) if "FPR" in words else (allowed[0] + 0.001, allowed[1])
    for arguments in ((*more, 0.95), (*demands, confidence + 0.001)):
        with pytest.raises(TooFewExamplesError):
            decision_threshold(scores, target, *arguments[:2], confidence=arguments[2])


def test_what_can_not_be_guaranteed_is_not_claimed():
    """Both demands hold on these examples, but only one with room to spare; then none."""
    generator = torch.Generator().manual_seed(1)
    target = (torch.arange(400) < 100).long()
    scores = torch.randn(400, generator=generator) + 1.05 * target
    with pytest.warns(TPAUCWarning, match="guarantees min_tpr as well: ask for less, or take 8 times as"):
        chosen = decision_threshold(scores, target, 0.6, 0.4, "max_sensitivity", confidence=0.95)
    assert chosen[5:] == (("max_fpr",), 8)
    for times in (6, 8):
        with silent():
            more = decision_threshold(scores.repeat(times), target.repeat(times), 0.6, 0.4, confidence=0.95)
        assert (len(more.guaranteed) == 2) == (times == 8)
    with pytest.warns(TPAUCWarning, match="guarantees .* ask for less[.]"):
        assert len(decision_threshold(scores, target, 0.65, 0.35, confidence=0.95).guaranteed) < 2
    weights = torch.rand(400, generator=generator)
    with pytest.raises(ArgumentError, match="equal `sample_weight` within a class"):
        decision_threshold(scores, target, sample_weight=weights, confidence=0.95)
    by_class = decision_threshold(scores, target, 0.0, 0.5, sample_weight=1.0 + target, confidence=0.95)
    assert by_class.guaranteed == ("max_fpr",)
