"""What all methods have in common, method by method."""

import copy
import inspect
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_tpauc.algorithms import STACO
from lightning_tpauc.algorithms.aucm import AUCM
from lightning_tpauc.algorithms.base import PreviousScores
from lightning_tpauc.algorithms.baselines import CrossEntropy
from lightning_tpauc.algorithms.pauci import PAUCI
from lightning_tpauc.algorithms.sonx import SONX
from lightning_tpauc.algorithms.sota import SOTA, SOTAs
from lightning_tpauc.errors import ArgumentError, CheckpointError, UnsupportedError
from lightning_tpauc.functional import Surrogate, get_surrogate
from tests.helpers.loop import Loop
from tests.helpers.tolerances import assert_close

METHODS = {
    "STACO": lambda: STACO(dual_init="zeros"),
    "tracked": lambda: STACO(duals="tracked"),
    "SOTA": lambda: SOTA(dual_init="zeros", gamma=2.0, stage_restart="ones"),
    "SOTAs": lambda: SOTAs(lam=0.5, lam_prime=2.0),
    "SONX": lambda: SONX(gamma=0.1),
    "PAUCI": PAUCI,
    "AUCM": lambda: AUCM(gamma=5.0),
    "CrossEntropy": CrossEntropy,
}
#: Methods whose settings are in units of the loss, with what these are given.
IN_UNITS = {
    "STACO": (STACO, {}),
    "STACO2": (STACO, {"gamma": 5.0}),
    "tracked": (STACO, {"duals": "tracked"}),
    "SOTA": (SOTA, {"gamma": 5.0}),
    "SOTAs": (SOTAs, {}),
    "SONX": (SONX, {"gamma": 0.0}),
}
each_method = pytest.mark.parametrize("method", METHODS)


def tensors_of(state):
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


@each_method
def test_resumed_run_equals_a_straight_one(method, tmp_path):
    straight, first = Loop(METHODS[method]()), Loop(METHODS[method]())
    for batch in straight.batches[:20]:
        straight.step(batch)
    for batch in first.batches[:9]:
        first.step(batch)
    torch.save({"algorithm": first.algorithm.state_dict(), "w": first.w.detach()}, tmp_path / "state.pt")
    second = Loop(METHODS[method]())
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    second.algorithm.load_state_dict(saved["algorithm"])
    second.w.data.copy_(saved["w"])
    second.anchor = first.anchor
    for batch in second.batches[9:20]:
        second.step(batch)
    assert torch.equal(second.w, straight.w)
    for name, value in tensors_of(straight.algorithm.state_dict()).items():
        assert torch.equal(getattr(second.algorithm, name), value), name


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, list, np.asarray])
@each_method
def test_rolled_back_step_leaves_no_trace(method, kind):
    loop = Loop(METHODS[method]())
    for batch in loop.batches[:5]:
        loop.step(batch)
    before = copy.deepcopy(loop.algorithm.state_dict())
    index = loop.batches[5][0]
    index = torch.tensor(index, dtype=kind) if isinstance(kind, torch.dtype) else kind(index)
    snapshot = loop.algorithm.snapshot(index)
    loop.step(loop.batches[5])
    changed = [n for n, v in tensors_of(before).items() if not torch.equal(getattr(loop.algorithm, n), v)]
    assert changed or method == "CrossEntropy"
    loop.algorithm.rollback(index, snapshot)
    for name, value in tensors_of(before).items():
        assert torch.equal(getattr(loop.algorithm, name), value), name


@pytest.mark.parametrize("kind", [list, tuple, np.asarray, lambda index: torch.tensor(index, dtype=torch.int16)])
@each_method
def test_the_index_may_be_any_integers(method, kind):
    def run(kind):
        algorithm = METHODS[method]()
        algorithm.setup(4)
        scores = torch.tensor([0.75, 0.25], requires_grad=True), torch.tensor([0.5, 0.125, 0.375])
        algorithm(*scores, scores[1], kind([3, 0])).backward()
        return [scores[0].grad, *tensors_of(algorithm.state_dict()).values()]

    assert all(torch.equal(a, b) for a, b in zip(run(kind), run(torch.tensor), strict=True))


@each_method
def test_loss_and_state_need_no_particular_dtype(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    pos = torch.tensor([0.75, 0.25], dtype=torch.bfloat16, requires_grad=True)
    neg = torch.tensor([0.5, 0.125, 0.375], dtype=torch.bfloat16, requires_grad=True)
    loss = algorithm(pos, neg, neg, torch.tensor([3, 0]))
    loss.backward()
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert pos.grad.dtype == torch.bfloat16
    assert bool(torch.isfinite(torch.cat([pos.grad, neg.grad])).all())
    assert all(v.dtype in (torch.float32, torch.int32) for v in tensors_of(algorithm.state_dict()).values())
    assert math.isfinite(algorithm.scalar_sum())


@each_method
def test_backward_after_further_steps_still_sees_the_old_state(method):
    algorithm, again = METHODS[method](), METHODS[method]()
    pos = torch.tensor([0.7, 0.2], requires_grad=True)
    neg, index = torch.tensor([0.5, 0.1, 0.4]), torch.tensor([3, 0])
    algorithm.setup(4)
    again.setup(4)
    late = algorithm(pos, neg, neg, index)
    algorithm(pos.detach(), neg, neg, index)
    (late_grad,) = torch.autograd.grad(late, pos)
    (grad,) = torch.autograd.grad(again(pos, neg, neg, index), pos)
    assert torch.equal(late_grad, grad)


@each_method
def test_scaled_to_zero_no_descent_variable_moves(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    algorithm.step_scale = 0.0
    before = copy.deepcopy(algorithm.state_dict())
    neg = torch.tensor([0.5, 0.1, 0.4])
    algorithm(torch.tensor([0.7, 0.2]), neg, neg, torch.tensor([3, 0]))
    for name in {"y", "s", "s_prime", "centres", "c", "variables"} & set(before):
        assert torch.equal(getattr(algorithm, name), before[name]), name


@each_method
def test_only_positions_in_the_index_change(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    before = copy.deepcopy(algorithm.state_dict())
    neg = torch.tensor([0.5, 0.1, 0.4])
    algorithm(torch.tensor([0.7, 0.2]), neg, neg, torch.tensor([3, 0]))
    per_positive = [n for n, v in tensors_of(before).items() if v.shape == (4,)]
    for name in per_positive:
        assert torch.equal(getattr(algorithm, name)[[1, 2]], before[name][[1, 2]]), name


@pytest.mark.parametrize("method", IN_UNITS)
@pytest.mark.parametrize(("surrogate", "degree"), [("hinge", 1), ("squared_hinge", 2)])
@pytest.mark.parametrize("factor", [2.0**-10, 8.0, 2.0**13])  # exact in doubles: rounding decides about pairs
def test_in_units_of_the_loss_the_scale_of_the_scores_does_not_matter(method, surrogate, degree, factor):
    kind, given = IN_UNITS[method]
    runs = []
    for scale in (1.0, factor):
        loop = Loop(kind(0.6, 0.3, surrogate=surrogate, margin=scale, **given), lr=0.0)
        gradients = []
        for batch in loop.batches[:40]:
            pos, neg, dual, index = loop.tensors(batch)
            pos, neg, dual = (scale * loop.scores(x).detach() for x in (pos, neg, dual))
            pos.requires_grad_()
            loop.algorithm(pos, neg, dual, index).backward()
            gradients.append(pos.grad * scale)
        state = [
            getattr(loop.algorithm, n) / scale**degree for n in ("loss_unit", "s", "s_prime") if n in state_of(loop)
        ]
        runs.append([*gradients, *state])
    assert all(bool(gradient.isfinite().all()) for gradient in runs[0])
    assert any(bool(gradient.any()) for gradient in runs[0][-10:-3])
    for one, other in zip(*runs, strict=True):
        assert_close(other, one, "trajectory64")


def state_of(loop):
    return loop.algorithm.state_dict()


@pytest.mark.parametrize("method", IN_UNITS)
def test_in_units_of_the_loss_a_multiple_of_the_loss_trains_the_same(method):
    """Weights, anchors and all: one unit for the steps, the weights' loss and the pull to the anchor."""
    kind, given = IN_UNITS[method]
    hinge = get_surrogate("hinge", margin=1.0)
    once = replace(hinge, power=None)  # evaluated pair by pair, as the multiple is
    multiple = Surrogate(
        "multiple", lambda t: 128 * hinge.value(t), lambda t: 128 * hinge.derivative(t),
        lambda v: hinge.inverse(v / 128), monotone=True,
    )  # fmt: skip
    loops = [Loop(kind(0.6, 0.3, surrogate=surrogate, **given), lr=0.2) for surrogate in (once, multiple)]
    for t in range(60):
        for loop in loops:
            loop.step(loop.batches[t])
            if t == 30 and loop.algorithm.has_stages:
                loop.finish_stage()
        one, other = loops
        assert_close(other.w.detach(), one.w.detach(), "trajectory64")
        for name in {"loss_unit", "s", "s_prime"} & set(state_of(one)):
            assert_close(getattr(other.algorithm, name) / 128, getattr(one.algorithm, name), "trajectory64")
    assert not torch.equal(one.w.detach(), torch.tensor(one.start))


@pytest.mark.parametrize("method", ["SOTA", "SOTAs", "SONX"])
def test_a_state_without_a_unit_gets_it_in_the_next_step(method):
    """As earlier versions wrote it."""
    algorithm = METHODS[method]()
    algorithm.setup(4)
    x = torch.tensor([0.7, 0.2])
    algorithm(x, x, x, torch.tensor([3, 0]))
    state = {name: value for name, value in algorithm.state_dict().items() if name != "loss_unit"}
    algorithm.load_state_dict(copy.deepcopy(state))
    assert algorithm.loss_unit == 0.0
    algorithm(x, x, x, torch.tensor([3, 0]))
    assert algorithm.loss_unit > 0.0


@each_method
def test_use_before_setup(method):
    with pytest.raises(ArgumentError, match=r"has no state yet: call `setup\(num_positives\)` first"):
        METHODS[method]()(torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.tensor([0]))


@each_method
def test_state_of_another_method_or_data_set_is_refused(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    with pytest.raises(CheckpointError, match="written for 5 positive examples, but the training set has 4"):
        algorithm.load_state_dict({**algorithm.state_dict(), "num_positives": 5})
    with pytest.raises(CheckpointError, match="it was written by another algorithm"):
        algorithm.load_state_dict({**algorithm.state_dict(), "other": torch.zeros(())})


@pytest.mark.parametrize("method", ["STACO", "SOTA", "SOTAs", "AUCM", "CrossEntropy"])
def test_previous_scores_are_refused_by_methods_without_use_for_them(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    x = torch.zeros(2)
    with pytest.raises(UnsupportedError, match=f"{method} does not use the previous weights"):
        algorithm(x, x, x, torch.tensor([0, 1]), previous=PreviousScores(x, x))


@pytest.mark.parametrize("method", ["STACO", "SOTA", "SOTAs", "SONX", "PAUCI", "AUCM"])
@pytest.mark.parametrize(("num_pos", "num_neg"), [(0, 2), (2, 0)])
def test_batch_without_a_class_is_refused(method, num_pos, num_neg):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    message = f"{method} needs positives and negatives in every batch, but got {num_pos} and {num_neg}"
    with pytest.raises(ArgumentError, match=message):
        algorithm(torch.zeros(num_pos), torch.zeros(num_neg), torch.zeros(2), torch.arange(num_pos))


@each_method
@pytest.mark.parametrize("rectangle", [(1.0, 0.5), (-0.1, 0.5), (0.5, 0.0), (0.5, 1.5)])
def test_rectangle_outside_the_unit_square(method, rectangle):
    with pytest.raises(ArgumentError, match=r"Expected `m(in_tpr|ax_fpr)` to be a number in"):
        type(METHODS[method]())(*rectangle)


@each_method
def test_all_but_the_rectangle_is_passed_by_name(method):
    with pytest.raises(TypeError, match="positional argument"):
        type(METHODS[method]())(0.5, 0.5, 1.0)


@each_method
def test_number_of_positives_is_a_whole_number(method):
    with pytest.raises(ArgumentError, match=r"`num_positives` to be a whole number of at least 1, but got 2\.5"):
        METHODS[method]().setup(2.5)


@each_method
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_index_of_any_integer_dtype(method, dtype):
    narrow, wide = METHODS[method](), METHODS[method]()
    pos, neg, index = torch.tensor([0.7, 0.2]), torch.tensor([0.5, 0.1, 0.4]), torch.tensor([3, 0])
    narrow.setup(4)
    wide.setup(4)
    assert torch.equal(narrow(pos, neg, neg, index.to(dtype)), wide(pos, neg, neg, index))
    for name, value in tensors_of(wide.state_dict()).items():
        assert torch.equal(getattr(narrow, name), value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_index_of_another_dtype_is_refused(dtype):
    algorithm = STACO()
    algorithm.setup(4)
    x = torch.zeros(2)
    with pytest.raises(ArgumentError, match=rf"`index` to hold integers, but got {dtype}. Pass the positions"):
        algorithm(x, x, x, torch.tensor([0, 1]).to(dtype))


@each_method
def test_numbers_of_numpy_are_kept_as_plain_ones(method):
    kind = type(METHODS[method]())
    defaults = {n: p.default for n, p in inspect.signature(kind).parameters.items() if isinstance(p.default, float)}
    algorithm = kind(**{name: np.float32(default) for name, default in defaults.items()})
    for name, default in defaults.items():
        assert type(getattr(algorithm, name)) is float, name
        assert getattr(algorithm, name) == float(np.float32(default)), name
    with pytest.raises(ArgumentError, match=r"`min_tpr` to be a number in \[0, 1\), but got (np\.)?True"):
        kind(min_tpr=np.True_)


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (STACO(), "STACO(min_tpr=0.5, max_fpr=0.5)"),
        (STACO(0.6, 0.3, gamma=5.0, margin=0.5), "STACO(min_tpr=0.6, max_fpr=0.3, margin=0.5, gamma=5.0)"),
        (SONX(surrogate=get_surrogate("logistic")), "SONX(min_tpr=0.5, max_fpr=0.5, surrogate='logistic')"),
        (CrossEntropy(balanced=True), "CrossEntropy(min_tpr=0.5, max_fpr=0.5, balanced=True)"),
        (AUCM(gamma=math.inf), "AUCM(min_tpr=0.5, max_fpr=0.5, gamma=inf)"),
    ],
    ids=str,
)
def test_repr_says_what_differs_from_the_defaults(algorithm, text):
    assert repr(algorithm) == text


@each_method
@pytest.mark.parametrize(("wrong", "shown"), [(5, 5), (-1, -1), (10**9, 10**9)])
def test_an_index_out_of_range_is_named_and_changes_nothing(method, wrong, shown):
    algorithm = METHODS[method]()
    algorithm.setup(num_positives=5)
    scores = torch.linspace(-1, 1, 3, requires_grad=True)
    before = {name: value.clone() for name, value in tensors_of(algorithm.state_dict()).items()}
    with pytest.raises(ArgumentError, match=rf"Expected `index` to be in 0 .. 4, .*num_positives=5.* got {shown}\."):
        algorithm(scores, scores + 0.5, scores - 0.5, torch.tensor([0, wrong, 2]))
    for name, value in tensors_of(algorithm.state_dict()).items():
        assert torch.equal(
            value,
            before[name],
        ), name
