"""The state of a training by itself: its phases, its steps, and which weights the model holds."""

import torch
from torch import nn

from lightning_tpauc.algorithms import STACO
from lightning_tpauc.distributed import GatheredScores
from lightning_tpauc.training.state import Phase, TrainingState

NUM_POS = 5
KEYS = {"iterates", "memory", "previous", "best", "rectangle_schedule", "batches_seen", "last_validated"}


def make(**wanted):
    torch.manual_seed(0)
    net, algorithm, state = nn.Linear(3, 1), STACO(), TrainingState()
    algorithm.setup(NUM_POS)
    everything = {"keeps_best": True, "shrinking_steps": 10, **wanted}
    state.allocate(net, algorithm, list(net.parameters()), **everything)
    return state, net


def scores(value):
    filled = torch.full((2,), float(value))
    return GatheredScores(filled, -filled, -filled, torch.tensor([0, 3]))


def step(state, net, value):
    state.begin_step()
    assert state.phase is Phase.IN_STEP
    with torch.no_grad():
        net.weight.fill_(value)
        net.bias.fill_(value)
    state.commit_step(torch.tensor(value), scores(value))


def test_a_step_is_averaged_and_remembered():
    state, net = make()
    for value in (1.0, 3.0):
        step(state, net, value)
    assert state.phase is Phase.BETWEEN_STEPS
    assert (state.batches_seen, state.step_skipped, float(state.step_loss)) == (2, False, 3.0)
    assert torch.equal(state.average.mean[0], torch.full((1, 3), 2.0))
    (known,) = state.memory.of_last_steps()
    assert sorted(known.pos_scores.tolist()) == [1.0, 1.0, 3.0, 3.0]
    assert sorted(known.neg_scores.tolist()) == [-3.0, -3.0, -1.0, -1.0]


def test_a_skipped_step_is_counted_and_not_remembered():
    state, net = make()
    step(state, net, 1.0)
    state.begin_step()
    state.skip_step(torch.tensor(5.0))
    assert (state.batches_seen, state.step_skipped, float(state.step_loss)) == (2, True, 5.0)
    assert state.phase is Phase.BETWEEN_STEPS
    assert state.average.count == 1
    assert len(state.memory.of_last_steps()[0].neg_scores) == 2


def test_the_result_stays_in_the_model():
    state, net = make(keeps_best=False)
    for value in (1.0, 3.0):
        step(state, net, value)
    assert state.finish()
    state.restore_last_iterate()
    assert state.phase is Phase.FINISHED
    assert net.bias.item() == 2.0
    state.forget()
    assert (state.phase, state.average, state.batches_seen) == (Phase.UNTRAINED, None, 0)


def test_the_best_weights_are_the_result_where_there_are_any():
    state, net = make()
    step(state, net, 1.0)
    state.best.offer(0.5, 0.5, 1)
    step(state, net, 3.0)
    assert state.finish()
    assert net.bias.item() == 1.0


def test_its_state_comes_back_in_another_one():
    state, net = make()
    for value in (1.0, 3.0):
        step(state, net, value)
    state.best.offer(0.5, 0.5, 2)
    held = state.state_dict()
    assert set(held) == KEYS
    other, net = make()
    other.load_checkpoint(held)
    assert (other.phase, other.batches_seen, other.average) == (Phase.LOADED, 2, None)
    again, net = make()
    again.load_state_dict(held)
    assert net.bias.item() == 3.0
    step(again, net, 5.0)
    assert torch.equal(again.average.mean[1], torch.tensor([3.0]))
    assert (again.batches_seen, again.best.step) == (3, 2)


def test_a_loaded_checkpoint_is_taken_once_and_dropped_where_its_run_failed():
    state = TrainingState()
    state.load_checkpoint({"batches_seen": 7})
    assert state.take_restored() == {"batches_seen": 7}
    assert state.take_restored() is None
    assert state.phase is Phase.BETWEEN_STEPS
    state.load_checkpoint({"batches_seen": 7})
    state.drop_unused_checkpoint()
    assert (state.phase, state.batches_seen, state.restored) == (Phase.UNTRAINED, 0, None)
