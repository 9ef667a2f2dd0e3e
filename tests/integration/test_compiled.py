"""``torch.compile`` around the module or its backbone changes nothing that is trained, saved or loaded."""

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, SONX, STACO
from tests.helpers.problems import make_trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*"),
]

METHODS = {
    "SONX": SONX,
    "PAUCI": PAUCI,
    "STACO2": lambda: STACO(gamma=5.0),
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


@pytest.mark.parametrize("name", METHODS)
def test_a_compiled_module_trains_as_the_module_does(name, uncompiled):
    module = make(METHODS[name])
    trainer = train(module, lambda m: torch.compile(m, backend="aot_eager", fullgraph=True))
    state, metrics = uncompiled[name]
    assert_same(state, state_of(module))
    assert trainer.callback_metrics == metrics


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


def test_a_module_with_steps_of_its_own():
    states = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        module = MixedIn(algorithm=STACO(gamma=5.0), score_activation="sigmoid")
        train(module, wrap)
        states.append(state_of(module))
    assert_same(*states)


def compiled(net):
    return torch.compile(net, backend="eager")


def in_place(net):
    net.compile(backend="eager")
    return net


def plain(net):
    return net


@pytest.mark.parametrize(("name", "wrap"), [("PAUCI", compiled), ("STACO2", in_place)])
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


def test_a_compiled_module_resumes(uncompiled, tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    train(make(), lambda m: torch.compile(m, backend="aot_eager"), epochs=1, callbacks=[saver])
    module = make()
    trainer = train(module, lambda m: torch.compile(m, backend="aot_eager"), ckpt_path=saver.last_model_path)
    assert_same(uncompiled["PAUCI"][0], state_of(module))
    assert trainer.callback_metrics == uncompiled["PAUCI"][1]


def test_weights_of_the_compiled_module_itself():
    module, other = make(), make(wrap=compiled)
    other.load_state_dict(torch.compile(module).state_dict())
    for value, found in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(value, found)
    with pytest.raises(RuntimeError, match=r"Missing .*norm\.bias"):
        other.load_state_dict({k.replace("norm", "nrm"): v for k, v in module.state_dict().items()})
