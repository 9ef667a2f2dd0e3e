"""The memory of scores against a plain list, over random sequences of all that can happen to it."""

import io
import random
from itertools import count

import pytest
import torch

from lightning_tpauc.algorithms import TrainingScores
from lightning_tpauc.training.training_scores import ScoreMemory

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
