"""Inputs of many kinds reach the model as its ``forward`` takes them; outputs of many kinds become one score each."""

import warnings
from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import hardsigmoid

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, STACO, CrossEntropy, FullBatch
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional import tpauc_objective, two_way_partial_auroc
from lightning_tpauc.scoring.forward import call_model
from tests.helpers.problems import make_trainer, noisy_labels
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")

N = 60


def problem():
    return noisy_labels(N, 4, 0.5, 0.8, seed=0)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def trained(net, items=None, **kwargs):
    """Weights after three steps, and what validation logs.

    Of SGD, unless a module has its own: raw scores have no gradient in a bias, and Adam would divide rounding by it.
    """
    x, y = problem()
    data = PosNegDataModule((x, y) if items is None else items, num_pos=4, num_neg=6, val_fraction=0.3)
    module = net if isinstance(net, TPAUCModule) else TPAUCModule(net, STACO(gamma=5.0), sgd, **kwargs)
    trainer = make_trainer(precision="32-true", max_steps=3)
    trainer.fit(module, data)
    return [p.detach().clone() for p in module.parameters()], trainer.callback_metrics


def assert_same(first, second, kind="float32"):
    for p, q in zip(first[0], second[0], strict=True):
        assert_close(p, q, kind)
    assert list(first[1]) == list(second[1])
    for name, value in first[1].items():
        assert_close(value, second[1][name], kind)


class Keywords(nn.Module):
    """Takes its inputs apart, as models of Hugging Face do."""

    def __init__(self, result=lambda scores: scores):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.result = nn.Linear(4, 1), result

    def forward(self, left=None, right=None, labels=None):
        assert labels is None
        return self.result(self.linear(torch.cat([left, right], dim=1)))


class Mapped(Keywords):
    def forward(self, batch):
        return super().forward(batch["left"], batch["right"])


class Pair(Keywords):
    def forward(self, left, right):
        return super().forward(left, right)


class AsSubclass(TPAUCModule):
    def __init__(self):
        super().__init__(algorithm=STACO(gamma=5.0), optimizer=sgd)
        self.net = Keywords()

    def forward(self, left, right):
        return self.net(left, right)


class Whole(Keywords):
    def forward(self, x):
        return super().forward(x[:, :1], x[:, 1:])


def mappings():
    x, y = problem()
    return [{"left": x[k, :1], "right": x[k, 1:], "y": y[k]} for k in range(N)]


def whole_by_name():
    x, y = problem()
    return [{"inputs": x[k], "y": y[k]} for k in range(N)]


def pairs():
    x, y = problem()
    return [(x[k, :1], x[k, 1:], int(y[k])) for k in range(N)]


@pytest.mark.parametrize(
    ("net", "items"),
    [
        (Keywords, mappings),
        (Mapped, mappings),
        (AsSubclass, mappings),
        (Whole, whole_by_name),
        (lambda: torch.compile(Keywords(), backend="eager"), mappings),
        (Pair, pairs),
        (AsSubclass, pairs),
    ],
    ids=["keywords", "one mapping", "subclass", "one keyword", "compiled", "two arguments", "subclass, two arguments"],
)
def test_inputs_in_parts_train_as_the_whole(net, items):
    assert_same(trained(net(), items()), trained(Whole()))


Output = namedtuple("Output", "logits hidden")


@pytest.mark.parametrize(
    "result",
    [
        lambda scores: SimpleNamespace(loss=None, logits=scores),
        lambda scores: {"loss": None, "logits": scores},
        lambda scores: Output(scores, None),
        lambda scores: scores[:, 0],
        lambda scores: scores[:, :, None, None],
        lambda scores: torch.cat([torch.zeros_like(scores), scores], dim=1),
        lambda scores: SimpleNamespace(logits=torch.cat([torch.zeros_like(scores), scores], dim=1)),
    ],
    ids=["logits", "mapping", "named tuple", "(N,)", "(N, 1, 1, 1)", "two classes", "logits of two classes"],
)
def test_outputs_of_all_kinds_train_as_scores_do(result):
    assert_same(trained(Keywords(result), mappings()), trained(Whole()))


def test_two_logits_are_what_softmax_ranks():
    x, y = problem()
    module = TPAUCModule(nn.Linear(4, 2), score_activation="sigmoid")
    expected = module.backbone(x).softmax(dim=1)[:, 1]
    torch.testing.assert_close(module.algorithm_scores(x), expected)
    logged = make_trainer(precision="32-true").validate(module, PosNegDataModule(val_dataset=(x, y)), verbose=False)[0]
    assert logged["val/tpauc"] == pytest.approx(float(two_way_partial_auroc(expected, y)), abs=1e-6)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (torch.zeros(3, 3), r"shape \(N,\) or \(N, 1\), or the logits of two classes, \(N, 2\), but got \(3, 3\)"),
        ((torch.zeros(3), torch.zeros(3)), "a tuple. Return the scores alone"),
        ({"scores": torch.zeros(3)}, "a dict. Return the scores alone"),
        (None, "a NoneType. Return the scores alone"),
        (torch.zeros(3).long(), r"torch\.int64, which has no gradient\. .* before any `argmax`"),
    ],
)
def test_other_outputs_are_refused(output, words):
    class Odd(nn.Module):
        def forward(self, _):
            return output

    with pytest.raises(ArgumentError, match=words):
        TPAUCModule(Odd()).raw_scores(torch.zeros(3, 2))


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_names_that_fit_in_part(kind):
    batch = {"left": torch.zeros(2, 1), "right": torch.zeros(2, 3)}
    assert call_model(Pair(), kind(batch)).shape == (2, 1)
    with pytest.raises(
        ArgumentError, match=r"requires `right`, but the batches hold left, y\. Let the data set's items"
    ):
        call_model(Pair(), kind(left=batch["left"], y=0))
    with pytest.warns(TPAUCWarning, match=r"takes no `text` and no `id`, which the batches hold: left out"):
        assert call_model(Keywords(), kind(batch, text=["a", "b"], id=0)).shape == (2, 1)
    assert call_model(lambda left, **others: sorted(others), kind(batch, labels=3)) == ["right"]
    assert call_model(lambda left, target: target, kind(left=1, target=2, y=3)) == 2
    assert call_model(lambda x: x["x"], kind(z=1, x=5)) == 5
    assert call_model(lambda x: x, kind(x=5)) == 5
    assert call_model(lambda *anything: len(anything), kind(batch)) == 1
    assert call_model(lambda **anything: sorted(anything), kind(batch)) == ["left", "right"]


# ---------------------------------------------------------------- graphs


@pytest.fixture(scope="module")
def data_of():
    return import_extra("torch_geometric.data", "graph")


def graphs(data_of):
    x, y = problem()
    edges = torch.tensor([[0, 1], [1, 0]])
    return [data_of.Data(x=x[k].reshape(2, 2), edge_index=edges, y=y[k : k + 1]) for k in range(N)]


class WholeGraph(nn.Module):
    """A message along every edge, then a sum over each graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 1)

    def scores(self, x, edge_index, batch):
        x = self.inner(x)
        x = x.index_add(0, edge_index[1], x[edge_index[0]]).tanh()
        return self.head(x.new_zeros(int(batch.max()) + 1, 3).index_add(0, batch, x))

    def forward(self, data):
        return self.scores(data.x, data.edge_index, data.batch)


class GraphParts(WholeGraph):
    def forward(self, x, edge_index, batch):
        return self.scores(x, edge_index, batch)


class OptionalParts(WholeGraph):
    def forward(self, x, edge_index, edge_weight=None, batch=None):
        assert edge_weight is None
        return self.scores(x, edge_index, batch)


@pytest.mark.parametrize("net", [GraphParts, OptionalParts])
def test_graphs_reach_a_forward_that_names_their_tensors(net, data_of):
    assert_same(trained(net(), graphs(data_of)), trained(WholeGraph(), graphs(data_of)))


# ---------------------------------------------------------------- activations


def module_for(head, algorithm=STACO, **kwargs):
    torch.manual_seed(0)
    return TPAUCModule(
        nn.Sequential(nn.Linear(4, 2), head), algorithm(gamma=5.0) if algorithm is STACO else algorithm(), **kwargs
    )


class Ends(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.end = end

    def forward(self, x):
        return self.end(x)


SQUASHED = {
    "sigmoid of one": lambda x: torch.sigmoid(x[:, :1]),
    "softmax": lambda x: x.softmax(dim=1),
    "probability": lambda x: x.softmax(dim=1)[:, 1],
    "hard": lambda x: hardsigmoid(x[:, 0]),
}


@pytest.mark.parametrize("end", SQUASHED.values(), ids=SQUASHED)
def test_a_sigmoid_too_many_is_named_once(end):
    words = "ends in a sigmoid or softmax, but {} is made for raw scores. Leave it out of the model"
    for method, activation in ((STACO, "sigmoid"), (STACO, "identity"), (CrossEntropy, "identity")):
        with pytest.warns(TPAUCWarning, match=words.format(method.__name__)) as warned:
            trained(module_for(Ends(end), method, score_activation=activation))
        assert len([w for w in warned if w.category is TPAUCWarning]) == 1
    trained(module_for(Ends(end), lambda **_: STACO(margin=0.25)))  # without a word


def test_a_method_for_probabilities_warns_of_raw_scores():
    with pytest.warns(TPAUCWarning, match=r"PAUCI is made for scores in \[0, 1\]: set `score_activation='sigmoid'`"):
        trained(module_for(Ends(lambda x: x[:, 0]), PAUCI))
    trained(module_for(Ends(lambda x: x[:, 0]), PAUCI, score_activation="sigmoid"))
    trained(module_for(Ends(SQUASHED["probability"]), PAUCI))


@pytest.mark.parametrize("activation", ["identity", "sigmoid"])
def test_the_logged_objective_is_the_trained_one(activation):
    x, y = problem()
    torch.manual_seed(0)
    module = TPAUCModule(
        nn.Linear(4, 1),
        FullBatch(),
        lambda p: torch.optim.SGD(p, lr=0.0),
        log_objective=True,
        score_activation=activation,
    )
    trainer = make_trainer(precision="32-true", max_steps=1)
    trainer.fit(module, PosNegDataModule((x, y), (x, y)))
    metrics = trainer.callback_metrics
    assert float(metrics["val/objective"]) == pytest.approx(float(metrics["train/loss"]), rel=1e-6)
    raw = module.raw_scores(x).detach()
    assert float(metrics["val/tpauc"]) == pytest.approx(float(two_way_partial_auroc(raw, y)), abs=1e-9)


def test_methods_for_logits_report_the_objective_of_logits():
    x, y = problem()
    module = TPAUCModule(nn.Linear(4, 1), CrossEntropy(), log_objective=True, score_activation="sigmoid")
    logged = make_trainer(precision="32-true").validate(module, PosNegDataModule(val_dataset=(x, y)), verbose=False)[0]
    raw = module.raw_scores(x).detach().double()
    expected = tpauc_objective(raw[y == 1], raw[y == 0])
    assert logged["val/objective"] == pytest.approx(float(expected), rel=1e-6)


def test_large_scores_keep_their_ranks_beside_the_objective():
    """Sigmoids of all of them are 1 in single precision, so a metric of those would see nothing but ties."""
    x, y = problem()
    module = TPAUCModule(nn.Linear(4, 1), log_objective=True, score_activation="sigmoid")
    with torch.no_grad():
        module.backbone.weight.zero_()
        module.backbone.weight[0, 0] = 1.0
        module.backbone.bias.fill_(50.0)
    logged = make_trainer(precision="32-true").validate(module, PosNegDataModule(val_dataset=(x, y)), verbose=False)[0]
    assert logged["val/tpauc"] == pytest.approx(float(two_way_partial_auroc(x[:, 0], y)), abs=1e-3)
    assert logged["val/objective"] == pytest.approx(0.25)  # m + 0, the margin of sigmoids


@pytest.mark.parametrize(("method", "said"), [(STACO, True), (lambda: STACO(margin=0.25), False), (PAUCI, False)])
@pytest.mark.filterwarnings("ignore:PAUCI is made for")
def test_a_sigmoid_that_the_graph_does_not_show_is_named_after_a_validation(method, said):
    x, y = problem()
    module = module_for(Ends(lambda x: (10.0 * x[:, 0]).sigmoid().clamp(0.0, 1.0)), method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(precision="32-true", max_epochs=2).fit(module, PosNegDataModule((x, y), (x, y)))
    found = [w for w in caught if "If the model ends in a sigmoid, leave it out" in str(w.message)]
    assert len(found) == said


# ---------------------------------------------------------------- loading and batches


def test_a_checkpoint_of_a_backbone_asks_for_it(tmp_path):
    module = TPAUCModule(nn.Linear(4, 1))
    trainer = make_trainer(precision="32-true", max_steps=1)
    trainer.fit(module, PosNegDataModule(problem(), num_pos=2, num_neg=2))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ArgumentError, match=r"pass `backbone=`, as in `TPAUCModule\.load_from_checkpoint\(path, backb"):
        TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt")
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=nn.Linear(4, 1))
    assert torch.equal(loaded.backbone.weight, module.backbone.weight)


@pytest.mark.parametrize(
    "arguments", [{}, {"num_positives": 5}, {"num_positives": 5, "algorithm": CrossEntropy()}], ids=str
)
def test_an_ordinary_loader_gets_one_answer(arguments):
    x, y = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    with pytest.raises(ArgumentError, match=r"batches of type PosNegBatch, not list\. .*datamodule=PosNegDataModule"):
        make_trainer(precision="32-true").fit(TPAUCModule(nn.Linear(4, 1), **arguments), loader)
