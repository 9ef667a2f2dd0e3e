"""Means and resamples of several labels against loops over examples and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from lightning_tpauc.comparison.resampling import Evaluated, resampled_areas, strata
from lightning_tpauc.comparison.results import difference, evaluate, measures
from lightning_tpauc.errors import ArgumentError
from tests.reference.tpauc import naive_tpauc

CORNER, WIDE, OWN = (0.5, 0.5), (0.25, 0.75), (0.5, 0.2)


def scored(seed, count=70, shift=1.0, missing=0.3):
    """Three labels of falling frequency, which overlap; scores of a method."""
    generator = torch.Generator().manual_seed(7)
    common = torch.rand(count, generator=generator)
    target = (common[:, None] + 0.3 * torch.rand(count, 3, generator=generator) > torch.tensor([0.7, 0.9, 1.1])).long()
    target[torch.rand(count, 3, generator=generator) < missing] = -1
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return Evaluated(noise + shift * (target == 1), target)


def naive_value(scores, target, rectangle):
    pos, neg = (scores[target == value].astype(float) for value in (1, 0))
    return naive_tpauc(pos, neg, *rectangle) if len(pos) and len(neg) else math.nan


def naive_strata(target):
    counts = [int((target[:, k] == 1).sum()) for k in range(target.shape[1])]
    groups = {}
    for row, labels in enumerate(target.tolist()):
        own = [k for k, value in enumerate(labels) if value == 1]
        rarest = min(own, key=lambda k: (counts[k], k)) if own else len(counts)
        groups.setdefault(rarest, []).append(row)
    return [groups[k] for k in sorted(groups)]


@pytest.mark.parametrize("seed", range(3))
def test_each_example_is_of_its_rarest_label(seed):
    target = torch.randint(-1, 2, (40, 5), generator=torch.Generator().manual_seed(seed))
    assert [rows.tolist() for rows in strata(target)] == naive_strata(target)
    one = (target[:, 0] == 1).long()
    assert [rows.tolist() for rows in strata(one)] == [(one == k).nonzero().squeeze(1).tolist() for k in (1, 0)]


def test_two_equal_columns_resample_as_one_label_does():
    run = scored(0, missing=0.0)
    one = Evaluated(run.scores[:, 0].contiguous(), run.target[:, 0])
    two = Evaluated(run.scores[:, [0, 0]], run.target[:, [0, 0]])
    plain, columns = (
        resampled_areas({"a": [one]}, [CORNER, WIDE], 30),
        resampled_areas({"a": [two]}, [CORNER, WIDE], 30, own=[CORNER] * 2),
    )
    for k in range(3):
        torch.testing.assert_close(columns["a"][..., k], plain["a"])
    assert plain["a"].std() > 0.01


def test_intervals_are_those_of_a_loop_over_examples():
    """Independent draws of numpy, strata and areas of plain Python: the same distribution, so nearly the same ends."""
    ours, theirs, rectangles = scored(1, shift=1.6), scored(2, shift=0.8), [OWN, CORNER, CORNER]
    target, generator = ours.target.numpy(), np.random.default_rng(0)
    groups = [np.array(rows) for rows in naive_strata(ours.target)]
    drawn = []
    for _ in range(500):
        rows = np.concatenate([generator.choice(rows, len(rows)) for rows in groups])
        both = [
            [naive_value(run.scores.numpy()[rows, k], target[rows, k], rectangles[k]) for k in range(3)]
            for run in (ours, theirs)
        ]
        drawn.append([np.nanmean(both[0]) - np.nanmean(both[1]), *(a - b for a, b in zip(*both, strict=True))])
    found = evaluate(
        {"ours": [ours], "theirs": [theirs]}, "theirs", [CORNER], list(zip("abc", rectangles, strict=True))
    )
    differences = [found.differences["ours"][0], *(label.differences["ours"] for label in found.labels)]
    for difference_, values in zip(differences, np.array(drawn).T, strict=True):
        low, high = np.nanquantile(values, [0.025, 0.975])
        assert (difference_.lower, difference_.upper) == pytest.approx((low, high), abs=0.12 * (high - low))


def test_a_draw_takes_an_example_with_all_its_labels():
    """Two labels with the same entries, and scores that rank them alike, agree in every resample."""
    run = scored(3)
    twice = Evaluated(run.scores[:, [0, 0]], run.target[:, [0, 0]])
    areas = resampled_areas({"a": [twice], "b": [twice]}, [CORNER], 40, own=[CORNER] * 2)["a"][:, 0]
    assert torch.equal(areas[:, 1], areas[:, 2])
    torch.testing.assert_close(areas[:, 0], areas[:, 1])
    assert areas.std() > 0.01


def test_resampled_values_are_those_of_what_was_drawn():
    """All methods and labels see the same draw: with labels as scores of another method, it can be told."""
    run = scored(4, missing=0.4)
    areas = resampled_areas(
        {"a": [run], "b": [Evaluated(run.scores.exp(), run.target)]}, [CORNER], 40, own=[CORNER] * 3
    )
    assert torch.equal(areas["a"], areas["b"])
    torch.testing.assert_close(areas["a"][:, 0, 0], areas["a"][:, 0, 1:].nanmean(1))


def test_a_label_that_lacks_a_class_in_a_resample_counts_in_no_mean_there():
    count = 60
    target = torch.zeros(count, 2, dtype=torch.long)
    target[:10, 0], target[5:15, 1] = 1, 1
    target[15:, 1] = -1
    target[:5, 1] = -1
    target[20, 1] = 0  # the only negative of this label: 1 of 45 examples of the last stratum
    run = Evaluated(torch.randn(count, 2, generator=torch.Generator().manual_seed(0)) + target, target)
    areas = resampled_areas({"a": [run]}, [CORNER], 1500, own=[CORNER] * 2)["a"][:, 0]
    lost = areas[:, 2].isnan()
    assert float(lost.double().mean()) == pytest.approx((1 - 1 / 45) ** 45, abs=0.04)
    assert torch.equal(areas[lost, 0], areas[lost, 1])
    torch.testing.assert_close(areas[~lost, 0], areas[~lost, 1:].mean(1))
    found = difference(0.0, areas[:, 2], 0 * areas[:, 2])
    kept = areas[~lost, 2].numpy()
    assert (found.lower, found.upper) == pytest.approx(tuple(np.quantile(kept, [0.025, 0.975])))


def test_values_are_means_of_what_scikit_learn_says_of_each_label():
    runs = [scored(5), scored(6)]
    labels = list(zip("abc", (OWN, CORNER, CORNER), strict=True))
    found = evaluate({"x": runs, "y": runs[::-1]}, "y", [CORNER, WIDE], labels)
    for number, one in enumerate(runs):
        columns = [(one.scores[:, k].double().numpy(), one.target[:, k].numpy()) for k in range(3)]
        known = [(scores[target >= 0], target[target >= 0]) for scores, target in columns]
        expected = {
            "tpauc 0": np.mean([naive_value(*own, r) for own, (_, r) in zip(known, labels, strict=True)]),
            "tpauc 1": np.mean([naive_value(*own, WIDE) for own in known]),
            "auroc": np.mean([roc_auc_score(target, scores) for scores, target in known]),
            "average_precision": np.mean([average_precision_score(target, scores) for scores, target in known]),
        }
        assert {name: found.measured["x"][name][number] for name in expected} == pytest.approx(expected)
    for k, label in enumerate(found.labels):
        values = [measures(one.of_labels()[k], [label.rectangle, WIDE]) for one in runs]
        assert label.measured["x"] == pytest.approx({n: np.mean([v[n] for v in values]) for n in values[0]})
        assert label.counts == tuple(int((runs[0].target[:, k] == value).sum()) for value in (1, 0))
        assert label.differences["x"].estimate == pytest.approx(0.0, abs=1e-12)
    assert "y" not in found.labels[0].differences


def test_folds_in_which_a_label_lacks_a_class():
    whole = scored(8, count=160)
    first, second = (Evaluated(whole.scores[rows], whole.target[rows].clone()) for rows in (slice(80), slice(80, 160)))
    second.target[second.target[:, 2] == 1, 2] = 0  # no positive of the last label here
    labels = list(zip("abc", [CORNER] * 3, strict=True))
    found = evaluate({"x": [first, second], "y": [first, second]}, "y", [CORNER], labels, folds=2)
    by_run = [[measures(label, [CORNER])["tpauc 0"] for label in part_.of_labels()] for part_ in (first, second)]
    assert math.isnan(by_run[1][2])
    assert found.measured["x"]["tpauc 0"] == pytest.approx([np.mean(by_run[0]), np.mean(by_run[1][:2])])
    assert [label.measured["x"]["tpauc 0"] for label in found.labels] == pytest.approx(np.nanmean(by_run, axis=0))
    counts = [sum(int((part_.target[:, k] == 1).sum()) for part_ in (first, second)) for k in range(3)]
    assert [label.num_positives for label in found.labels] == counts


def test_labels_of_one_class_alone_cant_be_compared():
    target = torch.tensor([[1, 0], [1, -1], [-1, 0]])
    with pytest.raises(ArgumentError, match="lack a class"):
        resampled_areas({"a": [Evaluated(torch.zeros(3, 2), target)]}, [CORNER], 2)
