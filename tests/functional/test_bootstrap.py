import math

import pytest
import torch

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.bootstrap import bootstrap_interval
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_tpauc, normal_tpauc


def normal_scores(num_pos, num_neg, seed, shift=1.2):
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.ones(num_pos, dtype=torch.int64), torch.zeros(num_neg, dtype=torch.int64)])
    return torch.randn(num_pos + num_neg, generator=generator, dtype=torch.float64) + shift * target, target


def test_quantiles_equal_those_of_resampled_lists():
    """The same draws, pushed through the naive loops."""
    scores, target = normal_scores(20, 30, seed=0)
    scores = scores.round(decimals=1)
    estimate, lower, upper = bootstrap_interval(scores, target, 0.4, 0.6, confidence=0.8, num_resamples=60, seed=5)
    pos, neg = sorted(scores[target == 1].tolist()), sorted(scores[target == 0].tolist())
    generator = torch.Generator().manual_seed(5)
    values = []
    for _ in range(60):
        drawn = [
            [scores[k] for k in torch.randint(len(scores), (len(scores),), generator=generator)]
            for scores in (pos, neg)
        ]
        values.append(naive_tpauc(*drawn, 0.4, 0.6))
    assert torch.equal(estimate, two_way_partial_auroc(scores, target, 0.4, 0.6))
    expected = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.1, 0.9], dtype=torch.float64))
    assert_close(torch.stack([lower, upper]), expected)


@pytest.mark.parametrize("names", [lambda group: group, lambda group: f"patient {group:03}"], ids=["numbers", "texts"])
def test_groups_are_drawn_with_all_their_rows(names):
    """Against loops over groups: those with a positive apart from those without, of two columns of scores."""
    generator = torch.Generator().manual_seed(3)
    group = torch.randint(25, (120,), generator=generator)
    target = ((group % 3 == 0) & (torch.rand(120, generator=generator) < 0.6)).long()
    target[:8] = -1
    scores = [torch.randn(120, generator=generator, dtype=torch.float64) + weight * target for weight in (1.0, 0.4)]
    kept = [k for k in range(120) if target[k] >= 0]
    rows = {g: [k for k in kept if group[k] == g] for g in sorted({int(group[k]) for k in kept})}
    strata = [[g for g in rows if any(target[k] == 1 for k in rows[g]) == with_positive] for with_positive in (1, 0)]
    draws, values = torch.Generator().manual_seed(7), []
    for _ in range(50):
        drawn = [own[k] for own in strata for k in torch.randint(len(own), (len(own),), generator=draws)]
        every = [k for g in drawn for k in rows[g]]
        values.append(
            [naive_tpauc(*([float(s[k]) for k in every if target[k] == c] for c in (1, 0)), 0.5, 0.5) for s in scores]
        )
    options = {
        "confidence": 0.8,
        "num_resamples": 50,
        "seed": 7,
        "ignore_index": -1,
        "groups": [names(int(g)) for g in group],
    }
    ends, values = torch.tensor([0.1, 0.9], dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
    area = bootstrap_interval(scores[0], target, **options)
    assert_close(torch.stack(area[1:]), values[:, 0].quantile(ends))
    difference = bootstrap_interval(scores[0], target, other_preds=scores[1], **options)
    assert_close(torch.stack(difference[1:]), (values[:, 0] - values[:, 1]).quantile(ends))
    areas = [two_way_partial_auroc(own, target, ignore_index=-1) for own in scores]
    assert_close(difference.estimate, areas[0] - areas[1])


def test_a_difference_is_of_the_same_draws_for_both_columns():
    scores, target = normal_scores(30, 40, seed=1)
    noisy = scores + 0.1 * normal_scores(30, 40, seed=2, shift=0.0)[0]
    found = [bootstrap_interval(scores, target, other_preds=other) for other in (scores.exp(), noisy, None)]
    assert [float(end) for end in found[0]] == [0.0] * 3
    assert found[1].upper - found[1].lower < 0.5 * (found[2].upper - found[2].lower)


@pytest.mark.slow
def test_intervals_cover_the_population_about_as_often_as_they_say():
    truth = normal_tpauc(shift=1.2, min_tpr=0.4, max_fpr=0.6)
    covered, below = 0, 0
    for seed in range(200):
        _, lower, upper = bootstrap_interval(
            *normal_scores(80, 120, seed), 0.4, 0.6, confidence=0.9, num_resamples=100, seed=seed
        )
        covered += bool(lower <= truth <= upper)
        below += bool(upper < truth)
    # 180 are expected; the standard deviation of a binomial count is 4.2. An interval half as wide covers about 118.
    assert 160 <= covered <= 194
    assert 1 <= below <= 25  # misses on either side


def test_order_and_repetition_give_the_same_bits_and_another_seed_does_not():
    scores, target = normal_scores(40, 60, seed=2)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    first = bootstrap_interval(scores, target, num_resamples=50)
    again = bootstrap_interval(scores[order], target[order], num_resamples=50)
    other = bootstrap_interval(scores, target, num_resamples=50, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.lower, other.lower)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    bootstrap_interval(*normal_scores(10, 10, seed=0), num_resamples=5)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("shift", "value"), [(100.0, 1.0), (-100.0, 0.0)], ids=["perfect", "inverted"])
def test_a_curve_without_variation_gives_a_point(shift, value):
    result = bootstrap_interval(*normal_scores(9, 11, seed=0, shift=shift), num_resamples=20)
    assert [float(end) for end in result] == [value] * 3


def test_ignored_rows_are_not_drawn():
    scores, target = normal_scores(30, 40, seed=0)
    padded = torch.cat([scores, torch.full((9,), 50.0, dtype=torch.float64)]), torch.cat([target, torch.full((9,), -1)])
    expected = bootstrap_interval(scores, target, num_resamples=20)
    result = bootstrap_interval(*padded, num_resamples=20, ignore_index=-1)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_unchecked_nan_gives_nan_and_a_warning():
    scores, target = normal_scores(5, 7, seed=0)
    scores[0] = math.nan
    with pytest.warns(TPAUCWarning, match="some scores are nan"):
        assert all(end.isnan() for end in bootstrap_interval(scores, target, validate_args=False))


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("confidence", 95, r"`confidence` to be a number in \(0, 1\), but got 95"),
        ("num_resamples", 0, "`num_resamples` to be a whole number of at least 1, but got 0"),
        ("seed", -1, "`seed` to be a whole number of at least 0"),
    ],
)
def test_arguments_out_of_range(argument, value, message):
    with pytest.raises(ArgumentError, match=message):
        bootstrap_interval(*normal_scores(3, 3, seed=0), **{argument: value})
