"""``torch.compile`` around the module or its backbone changes nothing that is trained, saved or loaded."""

import shutil

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, CrossEntropy, FullBatch, SOTAs
from tests.helpers.problems import make_trainer
from tests.helpers.tolerances import assert_close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*"),
]

METHODS = {
    "CrossEntropy": CrossEntropy,
    "balanced": lambda: CrossEntropy(balanced=True),
    "AUCM": AUCM,
    "SOTAs": SOTAs,
    "SOTA": SOTA,
    "SONX": SONX,
    "PAUCI": PAUCI,
    "STACO1": STACO,
    "STACO2": lambda: STACO(gamma=5.0),
    "tracked": lambda: STACO(duals="tracked"),
    "FullBatch": FullBatch,
}


class Net(nn.Module):
    """With what a second pass must repeat or leave alone: dropout and running statistics."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.drop, self.outer = nn.Dropout(0.3), nn.Linear(5, 1)

    def forward(self, inputs):
        return self.outer(self.drop(torch.tanh(self.norm(self.inner(inputs)))))


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 4, generator=generator)
    y = (x[:, 0] + 0.7 * torch.randn(150, generator=generator) > 1).long()
    return PosNegDataModule((x, y), num_pos=4, num_neg=8, val_fraction=0.3)


def make(algorithm=PAUCI, wrap=lambda net: net, cls=TPAUCModule, **kwargs):
    torch.manual_seed(0)
    return cls(wrap(Net()), algorithm(), **{"score_activation": "sigmoid", "warmup": 0.0, **kwargs})


def train(module, compiled=lambda module: module, epochs=2, callbacks=(), **kwargs):
    trainer = make_trainer(
        precision="32-true",
        max_epochs=epochs,
        callbacks=[StageCallback(shrink_rectangle=False, keep_best=False), *callbacks],
        enable_checkpointing=bool(callbacks),
    )
    trainer.fit(compiled(module), data(), **kwargs)
    return trainer


def state_of(module):
    own = {name.replace("_orig_mod.", ""): value for name, value in module.state_dict().items()}
    return {**own, **module.algorithm.state_dict()}


def assert_same(first, second):
    assert list(first) == list(second)
    for name, value in first.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second[name])), name


@pytest.fixture(scope="module")
def uncompiled():
    results = {}
    for name, method in METHODS.items():
        module = make(method)
        trainer = train(module)
        results[name] = state_of(module), trainer.callback_metrics
    return results


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in METHODS), ("STACO2", "eager"), ("PAUCI", "eager")]
)
def test_a_compiled_module_trains_as_the_module_does(name, backend, uncompiled):
    module = make(METHODS[name])
    trainer = train(module, lambda m: torch.compile(m, backend=backend, fullgraph=True))
    state, metrics = uncompiled[name]
    assert_same(state, state_of(module))
    assert trainer.callback_metrics == metrics


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_inductor_trains_all_methods():
    for method in METHODS.values():
        modules = []
        for compiled in (lambda m: m, torch.compile):
            torch.manual_seed(0)
            modules.append(TPAUCModule(nn.Linear(4, 1), method(), score_activation="sigmoid"))
            train(modules[-1], compiled, epochs=1)
        weights = [module.backbone.weight.detach() for module in modules]
        assert_close(weights[1], weights[0], "trajectory32")


def test_the_model_is_what_is_compiled():
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    train(make(), lambda m: torch.compile(m, backend=backend, dynamic=True))
    assert graphs
    assert all(torch.tanh in targets and torch.sigmoid not in targets for targets in graphs)


class Theirs(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, inputs):
        return self.net(inputs)


class MixedIn(TPAUCModule, Theirs):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/double", 2 * loss)
        return loss


class Subclass(TPAUCModule):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.backbone = Net()


@pytest.mark.parametrize("cls", [MixedIn, Subclass])
def test_modules_of_ones_own(cls):
    states = []
    for compiled in (lambda m: m, lambda m: torch.compile(m, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        module = cls(algorithm=STACO(gamma=5.0), score_activation="sigmoid")
        train(module, compiled)
        states.append(state_of(module))
    assert_same(*states)


def compiled(net):
    return torch.compile(net, backend="eager")


def in_place(net):
    net.compile(backend="eager")
    return net


def plain(net):
    return net


@pytest.mark.parametrize("name", ["PAUCI", "STACO2", "SONX"])
@pytest.mark.parametrize("wrap", [compiled, in_place])
def test_a_compiled_backbone_trains_as_the_backbone_does(name, wrap, uncompiled):
    module = make(METHODS[name], wrap)
    train(module)
    assert_same(uncompiled[name][0], state_of(module))


@pytest.mark.parametrize(("first", "second"), [(compiled, plain), (plain, compiled), (compiled, compiled)])
def test_checkpoints_go_between_compiled_and_plain_backbones(first, second, uncompiled, tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    written = make(wrap=first)
    train(written, epochs=1, callbacks=[saver])
    resumed = make(wrap=second)
    train(resumed, ckpt_path=saver.last_model_path)
    assert_same(uncompiled["PAUCI"][0], state_of(resumed))

    loaded = TPAUCModule.load_from_checkpoint(saver.last_model_path, backbone=second(Net()), algorithm=PAUCI())
    tuned = make(wrap=second, init_from=saver.last_model_path, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    train(tuned, epochs=1)
    for other in (loaded, tuned):
        for (name, value), found in zip(written.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(value, found), name


@pytest.mark.parametrize("resumed_as", ["compiled", "plain"])
def test_a_compiled_module_resumes(resumed_as, uncompiled, tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    train(make(), lambda m: torch.compile(m, backend="aot_eager"), epochs=1, callbacks=[saver])
    module = make()
    wrap = {"compiled": lambda m: torch.compile(m, backend="aot_eager"), "plain": plain}[resumed_as]
    trainer = train(module, wrap, ckpt_path=saver.last_model_path)
    assert_same(uncompiled["PAUCI"][0], state_of(module))
    assert trainer.callback_metrics == uncompiled["PAUCI"][1]


def test_weights_of_the_compiled_module_itself():
    module, other = make(), make(wrap=compiled)
    other.load_state_dict(torch.compile(module).state_dict())
    for value, found in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(value, found)
    with pytest.raises(RuntimeError, match=r"it lacks '.*\.norm.bias', .*; it adds '.*nrm.bias', "):
        other.load_state_dict({k.replace("norm", "nrm"): v for k, v in module.state_dict().items()})


def test_a_step_of_ones_own_loop_may_be_compiled():
    """Gradients are those of the values before the step, though the state is changed before they are taken."""

    def gradients(wrap):
        algorithm = AUCM(eta=0.5)
        algorithm.setup(num_positives=3)
        weight = torch.full((4,), 0.3, requires_grad=True)
        x = torch.arange(20.0).reshape(5, 4).sin()

        @wrap
        def loss_of(x):
            scores = x @ weight
            return algorithm(scores[:3], scores[3:], index=torch.arange(3))

        found = []
        for _ in range(3):
            weight.grad = None
            loss_of(x).backward()
            found.append(weight.grad.clone())
        return torch.stack(found)

    torch.testing.assert_close(
        gradients(lambda f: torch.compile(f, backend="aot_eager")), gradients(lambda f: f), rtol=0, atol=0
    )
