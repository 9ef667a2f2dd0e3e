"""What all methods have in common, method by method."""

import copy
import inspect
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, CrossEntropy, PreviousScores, SOTAs
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


@pytest.mark.parametrize("kind", [torch.int64, torch.int16, torch.uint8, list, tuple, np.asarray])
@each_method
def test_a_step_changes_what_it_is_told_to_and_a_rollback_leaves_no_trace(method, kind):
    loop = Loop(METHODS[method]())
    for batch in loop.batches[:5]:
        loop.step(batch)
    algorithm, before = loop.algorithm, copy.deepcopy(loop.algorithm.state_dict())
    pos, neg, dual, index = loop.tensors(loop.batches[5])
    snapshot = algorithm.snapshot(index)
    given = index.to(kind) if isinstance(kind, torch.dtype) else kind(index.tolist())
    loss = algorithm(loop.scores(pos), loop.scores(neg), loop.scores(dual), given)
    changed = [n for n, v in tensors_of(before).items() if not torch.equal(getattr(algorithm, n), v)]
    assert changed or method == "CrossEntropy"
    others = torch.ones(12, dtype=torch.bool).index_fill(0, index, False)
    for name in (n for n, spec in algorithm.state_specs.items() if spec.kind == "positive"):
        assert torch.equal(getattr(algorithm, name)[others], before[name][others]), name
    for at in (index, given):
        algorithm.rollback(at, snapshot)
        for name, value in tensors_of(before).items():
            assert torch.equal(getattr(algorithm, name), value), name
    assert torch.equal(algorithm(loop.scores(pos), loop.scores(neg), loop.scores(dual), index), loss)


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


@each_method
def test_state_of_another_method_or_data_set_is_refused(method):
    algorithm = METHODS[method]()
    algorithm.setup(4)
    with pytest.raises(CheckpointError, match="written for 5 positive examples, but the training set has 4"):
        algorithm.load_state_dict({**algorithm.state_dict(), "num_positives": 5})
    with pytest.raises(CheckpointError, match="it was written by another algorithm"):
        algorithm.load_state_dict({**algorithm.state_dict(), "other": torch.zeros(())})


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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])  # noqa: S301
@each_method
def test_a_copy_is_an_algorithm_of_its_own(method, duplicate):
    """Before setup, as a module copies what it is given, and in mid-run."""
    original = METHODS[method]()
    twin = duplicate(original)
    twin.score_slope = 0.25  # as behind a sigmoid
    assert original.score_slope == 1.0
    if hasattr(original, "surrogate"):
        assert original.surrogate.name == twin.surrogate.name
        assert original.surrogate.value(torch.ones(1)) != twin.surrogate.value(torch.ones(1))
    loop = Loop(original)
    for batch in loop.batches[:5]:
        loop.step(batch)
    again = duplicate(original)
    pos, neg, dual, index = loop.tensors(loop.batches[5])
    scores = [loop.scores(x).detach() for x in (pos, neg, dual)]
    before = copy.deepcopy(tensors_of(original.state_dict()))
    loss = again(*scores, index)
    for name, value in before.items():
        assert torch.equal(getattr(original, name), value), name
    assert torch.equal(original(*scores, index), loss)


# ---------------------------------------------------------------- what does not go


@each_method
def test_calls_that_do_not_fit_name_the_argument_and_change_nothing(method):
    kind, algorithm, x = type(METHODS[method]()), METHODS[method](), torch.linspace(-1, 1, 3)
    name, at = kind.__name__, torch.tensor([0, 1, 2])
    with pytest.raises(ArgumentError, match=r"has no state yet: call `setup\(num_positives\)` first"):
        algorithm(x, x, x, at)
    for wrong in (2.5, 0, -1, True, "3", None, torch.tensor(2.5)):
        with pytest.raises(ArgumentError, match=r"`num_positives` to be the number of .*Count them: `int\("):
            algorithm.setup(wrong)
    with pytest.raises(ArgumentError, match=r"`dtype` to be torch\.float32 or torch.float64"):
        algorithm.setup(5, dtype=torch.bfloat16)
    algorithm.setup(torch.tensor([1, 1, 0, 1, 1, 1]).sum())
    before = copy.deepcopy(tensors_of(algorithm.state_dict()))
    calls = [
        ((x, x, x, None), r"Expected `index` of shape \(number of them\), but got None. Number the training positives"),
        ((x[:, None], x, x, at), r"Expected `pos_scores` of shape .* got \(3, 1\). Drop a trailing dimension"),
        ((x, x[:, None], x[:, None], at), r"Expected `neg_scores` of shape .* got \(3, 1\)"),
        ((x.tolist(), x, x, at), "Expected `pos_scores` of shape"),
        ((x, x, x, at[:2]), r"Expected `index` of shape \(3, number of them\)|Expected `index`"),
        ((x, x, x, at.float()), "`index` to hold integers, but got torch.float32. Pass positions"),
        ((x, x, x, at > 0), "`index` to hold integers, but got torch.bool"),
        *(
            ((x, x, x, torch.tensor([0, wrong, 2])), rf"`index` to be in 0 .. 4, .*num_positives=5.* got {wrong}\.")
            for wrong in (5, -1, 10**9)
        ),
    ]
    if algorithm.sampling != "uniform":
        calls += [
            ((x[:0], x, x, at[:0]), f"{name} needs positives and negatives in every batch, but got 0 and 3"),
            ((x, x[:0], x[:0], at), f"{name} needs positives and negatives in every batch, but got 3 and 0"),
        ]
    if algorithm.needs_dual_negatives:
        calls.append(((x, x, None, at), "`dual_neg_scores` .* Draw a second batch .*or set `share_negatives=True`"))
    for arguments, message in calls:
        with pytest.raises(ArgumentError, match=message):
            algorithm(*arguments)
    if not algorithm.needs_previous:
        with pytest.raises(UnsupportedError, match=f"{name} does not use the previous weights"):
            algorithm(x, x, x, at, previous=PreviousScores(x, x))
    for key, value in tensors_of(algorithm.state_dict()).items():
        assert torch.equal(value, before[key]), key
    for rectangle in ((1.0, 0.5), (-0.1, 0.5), (math.nan, 0.5), (0.5, 0.0), (0.5, 1.5), (0.5, "0.5")):
        with pytest.raises(ArgumentError, match=r"Expected `m(in_tpr|ax_fpr)` to be a number in"):
            kind(*rectangle)
    with pytest.raises(TypeError, match="positional argument"):
        kind(0.5, 0.5, 1.0)


CHOICES = "to be one of 'exact', 'ones', 'zeros', but got 'one'"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (AUCM, {"margin": -1.0}, r"Expected `margin` to be a number in \[0, inf\), but got -1.0"),
        (AUCM, {"gamma": 0.0}, r"Expected `gamma` to be above 0 \(infinity: no proximal term\), but got 0.0"),
        (AUCM, {"momentum": 1.0}, r"Expected `momentum` to be a number in \[0, 1\), but got 1.0"),
        (PAUCI, {"kappa": 0.0}, r"Expected `kappa` to be a number in \(0, inf\), but got 0.0"),
        (PAUCI, {"m": 0.5}, r"Expected `m` to be a number in \[1, inf\), but got 0.5"),
        (SONX, {"tau": 0.0}, r"Expected `tau` to be a number in \(0, 1\], but got 0.0"),
        (SONX, {"dual_init": "exact", "surrogate": "square"}, "needs a non-decreasing surrogate, but 'square'"),
        (SOTA, {"gamma": math.inf}, "Expected `gamma` to be"),
        (SOTAs, {"lam": 0.0}, r"Expected `lam` to be a number in \(0, inf\), but got 0.0"),
        (SOTAs, {"alpha": 0}, r"Expected `alpha` to be a number in \(0, inf\), but got 0"),
        (CrossEntropy, {"pos_weight": math.nan}, r"Expected `pos_weight` to be a number in \(0, inf\), but got nan"),
        (STACO, {"alpha": -1.0}, r"`alpha` to be a number in \[0, inf\), but got -1.0"),
        (STACO, {"gamma": "5"}, r"`gamma` to be above 0 \(infinity: STACO1\), but got '5'"),
        (STACO, {"dual_init": "one"}, f"`dual_init` {CHOICES}"),
        (STACO, {"stage_restart": "zeros"}, "`stage_restart` to be one of 'exact', 'ones', but got 'zeros'"),
        (STACO, {"surrogate": "square"}, "`dual_init='exact'` needs a non-decreasing surrogate, but 'square'"),
        (STACO, {"duals": "exact"}, "`duals` to be one of 'per_positive', 'tracked', None, but got 'exact'"),
        (STACO, {"duals": "tracked", "surrogate": "square"}, "`duals='tracked'` needs a non-decreasing surrogate"),
        *(
            (STACO, {"duals": "tracked", "gamma": 5.0, name: value}, f"`{name}={value!r}` is for .* Leave out `{name}`")
            for name, value in (("alpha", 0.5), ("beta_prime", 0.0), ("dual_init", "zeros"), ("stage_restart", "ones"))
        ),
    ],
)
def test_bad_settings(kind, settings, message):
    with pytest.raises(ArgumentError, match=message):
        kind(**settings)
