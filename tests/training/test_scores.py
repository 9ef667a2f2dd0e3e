"""The memory of scores against a plain list, over random sequences of all that can happen to it.

Remembered scores of several labels, against lists; how their rectangles shrink.
"""

import io
import random
from itertools import count

import pytest
import torch

from lightning_tpauc.algorithms import STACO, Task, TrainingScores
from lightning_tpauc.functional.pairwise import TaskMasks
from lightning_tpauc.training.rectangle import RectangleSchedule
from lightning_tpauc.training.scores import ScoreMemory, TaskScoreMemory

NUM_POS = 5


def make_memory(capacity, dtype=torch.float32):
    return ScoreMemory(NUM_POS, capacity, "cpu", dtype)


class Lists:
    """What the memory is to hold: each positive's last score, and the newest negatives, oldest first."""

    def __init__(self, capacity):
        self.capacity, self.positives, self.negatives = capacity, {}, []

    def update(self, index, pos, neg):
        self.positives.update(zip(index, pos, strict=True))
        self.negatives = [*self.negatives, *neg][-self.capacity :]

    def resized(self, capacity):
        other = Lists(capacity)
        other.positives, other.negatives = dict(self.positives), self.negatives[-capacity:]
        return other


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_holds(memory, lists):
    scores = memory.training_scores()
    if not lists.negatives or len(lists.positives) < NUM_POS:
        assert scores is None
        return
    assert scores.pos_scores.tolist() == [lists.positives[k] for k in range(NUM_POS)]
    # the order has no meaning; the oldest is overwritten next, which later updates show
    assert sorted(scores.neg_scores.tolist()) == sorted(lists.negatives)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(60))
def test_any_sequence_equals_plain_lists(seed, dtype):
    rng, fresh = random.Random(seed), count(1)  # noqa: S311  # sequences, not secrets
    capacity = rng.randint(1, 12)
    memory, lists = make_memory(capacity, dtype), Lists(capacity)
    saved = []
    for _ in range(rng.randint(1, 40)):
        what = rng.choice(["update"] * 6 + ["forget", "fill", "save", "load", "resume"])
        if what in ("update", "fill"):
            index = rng.sample(range(NUM_POS), NUM_POS if what == "fill" else rng.randint(0, NUM_POS))
            index = sorted(index) if what == "fill" else index
            pos, neg = [next(fresh) for _ in index], [next(fresh) for _ in range(rng.randint(0, 15))]
            scores = torch.tensor(pos, dtype=dtype), torch.tensor(neg, dtype=dtype)
            if what == "fill":
                lists.negatives = []
                memory.fill(TrainingScores(*scores))
            else:
                memory.update(*scores, torch.tensor(index, dtype=torch.int64))
            lists.update(index, pos, neg)
        elif what == "forget":
            memory.forget_negatives()
            lists.negatives = []
        elif what == "save":
            saved.append((memory.state_dict(), lists.resized(lists.capacity)))
        elif what == "load" and saved:  # also one that was saved long ago, or with another capacity
            state, then = rng.choice(saved)
            memory.load_state_dict(state)
            lists = then.resized(memory.neg_scores.numel())
        elif what == "resume":
            capacity = rng.choice([memory.neg_scores.numel(), rng.randint(1, 20)])
            state = through_a_file(memory.state_dict())
            memory, lists = make_memory(capacity, dtype), lists.resized(capacity)
            memory.load_state_dict(state)
        assert_holds(memory, lists)


@pytest.mark.parametrize("seen", [0, 3, 9, 10, 13, 25])
def test_the_same_capacity_gives_the_same_layout(seen):
    """Sums over the negatives are then rounded alike."""
    memory, restored = make_memory(10), make_memory(10)
    memory.update(torch.arange(5.0), torch.zeros(0), torch.arange(5))
    for part in torch.arange(float(seen)).split(4):
        memory.update(torch.zeros(0), part, torch.arange(0))
    restored.load_state_dict(through_a_file(memory.state_dict()))
    for new in (torch.arange(100.0, 103.0), torch.arange(200.0, 209.0)):
        for each in (memory, restored):
            each.update(torch.zeros(0), new, torch.arange(0))
        assert torch.equal(*(each.training_scores().neg_scores for each in (memory, restored)))


def test_a_full_ring_goes_on_in_a_larger_one():
    """Capacity 10, 13 seen, then 20: the ten newest, and no entry that nobody wrote."""
    small, large = make_memory(10), make_memory(20)
    small.update(torch.arange(5.0), torch.arange(7.0), torch.arange(5))
    small.update(torch.zeros(0), torch.arange(7.0, 13.0), torch.arange(0))
    large.load_state_dict(small.state_dict())
    assert large.training_scores().neg_scores.tolist() == list(range(3, 13))
    large.update(torch.zeros(0), torch.arange(13.0, 17.0), torch.arange(0))
    assert large.training_scores().neg_scores.tolist() == list(range(3, 17))


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


def test_each_labels_rectangle_goes_its_own_way():
    generator = torch.Generator().manual_seed(1)
    tasks = [Task(5, min_tpr=0.8, weight=2.0), Task(5, max_fpr=0.2), Task(5), Task(5, weight=0.5)]
    algorithm = STACO(0.6, 0.5)
    algorithm.setup(tasks)
    corners = [(0.8, 0.5), (0.6, 0.2), (0.6, 0.5), (0.6, 0.5)]
    distances = (3.0, 0.0, 3.0, 0.5)  # of the classes' means
    scores = [
        TrainingScores(torch.randn(40, generator=generator) + far, torch.randn(60, generator=generator))
        for far in distances
    ]
    schedule = RectangleSchedule(algorithm, steps=10)
    schedule.start()
    singles = []
    for corner in corners:
        single = STACO(*corner)
        single.setup(5)
        singles.append(RectangleSchedule(single, steps=10))
        singles[-1].start()
    scores[2] = None  # until its positives were visited
    grids = [[0.1 + 0.2 * k + 0.02 * t for t in range(21)] for k in range(4)]
    for k in range(1, 26):
        if k == 8:
            scores[2] = TrainingScores(torch.full((40,), 2.0), torch.full((60,), -2.0))
        if k == 12:
            schedule.held_out = grids
            for single, grid in zip(singles, grids, strict=True):
                single.held_out = [grid]
        schedule.move(min(1.0, k / 20), scores)
        for single, own in zip(singles, scores, strict=True):
            single.move(min(1.0, k / 20), own)
        assert algorithm.tightness_of_tasks == tuple(single.algorithm.tightness for single in singles)
        assert schedule.held == [single.held[0] for single in singles]
        assert str(schedule.ratios) == str([single.ratios[0] for single in singles])  # equal nan
        assert algorithm.rectangles == [single.algorithm.rectangle for single in singles]
        bounds = torch.stack([*algorithm.bounds], 1)
        assert bounds.tolist() == [list(single.algorithm.rectangle) for single in singles]
    reached = algorithm.tightness_of_tasks
    assert reached[0] == 1.0
    assert reached[1] == 0.0
    assert 0.0 < reached[3] < 1.0
    assert algorithm.tightness == pytest.approx(sum(reached) / 4)


def test_a_label_that_trains_nothing_is_not_held():
    algorithm = STACO(0.6, 0.5)
    algorithm.setup([Task(5), Task(5, weight=0.0)])
    schedule = RectangleSchedule(algorithm, steps=10)
    schedule.start()
    generator = torch.Generator().manual_seed(0)
    scores = TrainingScores(torch.randn(40, generator=generator), torch.randn(60, generator=generator))
    for k in range(1, 21):
        schedule.move(k / 20, [scores, scores])
    assert algorithm.tightness_of_tasks == (0.0, 1.0)
    assert schedule.held == [True, False]


def test_how_far_each_label_came_is_in_the_checkpoint_and_said(caplog):
    algorithm = STACO(0.6, 0.5)
    algorithm.setup([4, 5, 6])
    schedule = RectangleSchedule(algorithm, steps=10)
    algorithm.tightness_of_tasks, schedule.held = (0.25, 1.0, 0.5), [True, False, False]
    schedule.held_out, schedule.ratios = [[0.5] * 21, [0.6] * 21, [0.7] * 21], [0.1, 0.2, 0.3]
    other = STACO(0.6, 0.5)
    other.setup([4, 5, 6])
    again = RectangleSchedule(other, steps=10)
    other.load_state_dict(algorithm.state_dict())
    again.load_state_dict(schedule.state_dict())
    assert other.tightness_of_tasks == (0.25, 1.0, 0.5)
    assert torch.equal(other.bounds[0], algorithm.bounds[0])
    assert (again.held, again.held_out, again.ratios) == (schedule.held, schedule.held_out, schedule.ratios)
    with caplog.at_level("INFO"):
        again.say_if_held("abc")
    assert "2 of 3 labels were trained on a part of the way" in caplog.text
    assert "their rectangle: a 25%, c 50%. Nearer to it, the objective came to 85%" in caplog.text
    # of a version in which all labels had one rectangle
    other.load_state_dict({**algorithm.state_dict(), "tightness": 0.75})
    again.load_state_dict({"held": True, "ratio": 0.5, "held_out": [0.4] * 21})
    assert other.tightness_of_tasks == (0.75,) * 3
    assert (again.held, again.ratios, again.held_out) == ([True] * 3, [0.5] * 3, [[0.4] * 21] * 3)
