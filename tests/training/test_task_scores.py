"""Remembered scores of several labels, against lists; the rule by which their rectangle shrinks."""

import math

import pytest
import torch

from lightning_tpauc.algorithms import STACO, Task, TrainingScores
from lightning_tpauc.functional import objective_ratio
from lightning_tpauc.functional.tasks import TaskMasks
from lightning_tpauc.training.rectangle_schedule import RectangleSchedule
from lightning_tpauc.training.training_scores import TaskScoreMemory

SIZES = (4, 3, 6)
K, S, B, CAPACITY = len(SIZES), 3, 5, 12


def batches(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        index = torch.stack([torch.randperm(n, generator=generator)[:S] for n in SIZES])
        masks = TaskMasks(*(torch.rand(K, size, generator=generator) < 0.6 for size in (S, B)))
        yield *(torch.randn(K, size, generator=generator) for size in (S, B)), index.where(masks.pos, 0), masks


def remembered(memory):
    return [None if own is None else [part.tolist() for part in own] for own in memory.known_scores()]


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_the_memory_is_that_of_lists(steps):
    memory = TaskScoreMemory(SIZES, CAPACITY, "cpu", torch.float32)
    last, recent = [{} for _ in SIZES], []
    for pos, neg, index, masks in batches(steps):
        memory.update(pos, neg, index, masks)
        for k in range(K):
            for j in range(S):
                if masks.pos[k, j]:
                    last[k][int(index[k, j])] = float(pos[k, j])
        recent = [*recent, *((neg[:, j], masks.neg[:, j]) for j in range(B))][-CAPACITY:]
    for k, own in enumerate(remembered(memory)):
        negatives = sorted(float(scores[k]) for scores, mask in recent if mask[k])
        if not (last[k] and negatives):
            assert own is None
            continue
        assert own[0] == [last[k][i] for i in sorted(last[k])]
        assert sorted(own[1]) == negatives
    complete = all(len(own) == n for own, n in zip(last, SIZES, strict=True)) and None not in remembered(memory)
    assert (memory.training_scores() is not None) == complete


def test_a_memory_goes_on_from_its_state():
    drawn = list(batches(8))
    memory, other = (TaskScoreMemory(SIZES, CAPACITY, "cpu", torch.float32) for _ in range(2))
    for batch in drawn[:5]:
        memory.update(*batch)
    other.load_state_dict(memory.state_dict())
    for batch in drawn[5:]:
        memory.update(*batch)
        other.update(*batch)
    assert remembered(memory) == remembered(other)
    assert torch.equal(memory.neg_scores.nan_to_num(9), other.neg_scores.nan_to_num(9))


def test_a_memory_is_filled_by_a_pass_over_the_data():
    scores = [TrainingScores(torch.rand(n), torch.rand(n + 2)) for n in SIZES]
    memory = TaskScoreMemory(SIZES, 20, "cpu", torch.float32)
    memory.fill(scores)
    for own, expected in zip(memory.training_scores(), scores, strict=True):
        assert torch.equal(own.pos_scores, expected.pos_scores)
        assert torch.equal(own.neg_scores, expected.neg_scores)


def test_what_holds_the_rectangle_is_the_weighted_mean_of_the_labels():
    generator = torch.Generator().manual_seed(1)
    tasks = [Task(5, min_tpr=0.8, weight=2.0), Task(5, max_fpr=0.2), Task(5), Task(5, weight=0.0)]
    algorithm = STACO(0.6, 0.5)
    algorithm.setup(tasks)
    scores = [
        TrainingScores(torch.randn(40, generator=generator) + 1.0, torch.randn(60, generator=generator)) for _ in tasks
    ]
    schedule = RectangleSchedule(algorithm, steps=10)
    schedule.start()
    for tightness in (0.0, 0.3, 1.0):
        corners = [(0.8, 0.5), (0.6, 0.2), (0.6, 0.5)]
        ratios = [
            float(objective_ratio(*own, tightness * low, 1 - tightness * (1 - high), algorithm.surrogate))
            for own, (low, high) in zip(scores, corners, strict=False)
        ]
        assert schedule.ratio_at(tightness, scores) == pytest.approx(
            (2 * ratios[0] + ratios[1] + ratios[2]) / 4, rel=1e-5
        )
        known = [scores[0], None, scores[2], None]
        assert schedule.ratio_at(tightness, known) == pytest.approx((2 * ratios[0] + ratios[2]) / 3, rel=1e-5)
    assert math.isnan(schedule.ratio_at(0.5, [None] * 4))
    schedule.move(1.0, scores)
    assert algorithm.tightness == pytest.approx(0.1)
