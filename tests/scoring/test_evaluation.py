"""What validation, test and prediction take, and the names of what they report."""

import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.scoring.labels import inputs_and_target
from tests.helpers.problems import make_problem, make_trainer
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*")

DIM = 5


def make_module(**kwargs):
    torch.manual_seed(0)
    return TPAUCModule(nn.Linear(DIM, 1), STACO(0.6, 0.4), lambda p: torch.optim.SGD(p, lr=0.05), **kwargs)


def loaders_of(*parts):
    x, y = make_problem()
    return [DataLoader(TensorDataset(x[part], y[part]), batch_size=16) for part in parts]


def area_of(module, part, *rectangle):
    x, y = make_problem()
    with torch.no_grad():
        return two_way_partial_auroc(module.raw_scores(x[part]), y[part], *rectangle)


@pytest.mark.parametrize("subject", ["validate", "test"])
def test_each_of_several_loaders_has_its_own_metrics(subject):
    module, parts = make_module(), (slice(0, None, 2), slice(1, None, 3), slice(None))
    trainer = make_trainer(precision="32-true")
    prefix = "val" if subject == "validate" else "test"
    for _ in range(2):  # the second time nothing of the first is left
        for results in getattr(trainer, subject)(module, loaders_of(*parts), verbose=True):
            for number, part in enumerate(parts):
                for name, rectangle in (("tpauc", (0.6, 0.4)), ("auroc", (0.0, 1.0))):
                    found = torch.tensor(results[f"{prefix}/{name}/dataloader_idx_{number}"], dtype=torch.float64)
                    assert_close(found, area_of(module, part, *rectangle), "float32")
    (alone,) = getattr(trainer, subject)(module, loaders_of(slice(None)), verbose=False)
    measured = {name.removeprefix(f"{prefix}/") for name in alone if "threshold" not in name}
    assert measured == {"tpauc", "auroc", "tpr_at_max_fpr", "fpr_at_min_tpr"}
    assert_close(
        torch.tensor(alone[f"{prefix}/tpauc"], dtype=torch.float64), area_of(module, slice(None), 0.6, 0.4), "float32"
    )


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_an_evaluation_says_how_far_below_the_rectangle_the_curve_passes(stage, caplog):
    """Of four positives one is above all negatives, of which every second one follows it."""
    scores = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    target = torch.tensor([1, 0, 0, 1, 0, 0, 1, 1])
    for min_tpr, said in ((0.75, 1), (0.2, 0)):
        module = TPAUCModule(nn.Linear(1, 1), CrossEntropy(min_tpr, 0.25))
        nn.init.ones_(module.backbone.weight)
        loader = DataLoader(TensorDataset(scores[:, None], target), batch_size=8)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (values,) = getattr(make_trainer(precision="32-true"), stage)(module, loader, verbose=False)
        name = f"{'val' if stage == 'validate' else 'test'}/tpauc"
        found = [str(warning.message) for warning in caught if " is 0: the ROC" in str(warning.message)]
        found_share = "at 25% false alarms it finds 25% of the positives, not 75%"
        line = f"{name} is 0: the ROC curve passes below the rectangle ({found_share})."
        assert found == [line] * (said and stage == "test")
        about = [r.message for r in caplog.records if "No threshold lies in the rectangle" in r.message]
        assert len(about) == (said and stage == "validate")
        caplog.clear()
        assert (values[name] == 0) == bool(said)
        assert values[name.replace("tpauc", "tpr_at_max_fpr")] == 0.25
        assert values[name.replace("tpauc", "fpr_at_min_tpr")] == (1.0 if said else 0.0)


class DataBatch(SimpleNamespace):
    """Stands for a batch of PyG."""


X, ONES, Y = torch.zeros(2, DIM), torch.ones(2, DIM), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": X}, "batches (inputs, target) to validate and test on, but got a dict. Let the data set return"),
        (DataBatch(x=X, y=Y), "got a DataBatch. Let the data set return such pairs, or give it to PosNegDataModule"),
        (
            (X, torch.tensor([0.0, 0.25])),
            "labels 0 and 1 in the batches, but found 0.25. Pass, for instance, (y > 0.5)",
        ),
        ((X, torch.tensor([0.0, torch.nan])), "labels 0 and 1 in the batches, but found nan"),
        ((X, torch.tensor([2, 1])), "labels 0 and 1 in the batches, but found 2. Pass, for instance, (y == 2)"),
        (
            (X, torch.zeros(2, 3)),
            "one label per example in the batches, as the model was trained for, but got shape (2, 3)",
        ),
        ((X, Y, Y), "but got 3 entries, and what was trained on is unknown: it can't be told which is the label"),
    ],
)
def test_batches_of_another_kind(batch, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        inputs_and_target(batch)


class TwoInputs(nn.Module):
    """Scores by features and one more number, both of which it needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(DIM + 1, 1)

    def forward(self, inputs):
        features, sex = inputs
        return self.linear(torch.cat([features, sex[:, None].float()], dim=1))


def two_inputs():
    x, y = make_problem()
    sex = torch.randint(0, 2, (len(y),), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    return TensorDataset(x, sex, y), TPAUCModule(TwoInputs(), STACO(0.6, 0.4), lambda p: torch.optim.SGD(p, lr=0.05))


class OwnLoaders(PosNegDataModule):
    """Validates by a plain loader, sanity check included, which comes before the first step."""

    def val_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=16)


def test_the_label_stands_in_one_place_everywhere(tmp_path):
    dataset, module = two_inputs()
    data = OwnLoaders(dataset, num_pos=4, num_neg=10, val_dataset=dataset)
    trainer = make_trainer(precision="32-true", num_sanity_val_steps=2)
    trainer.fit(module, data)
    x, sex, y = dataset.tensors
    area = float(two_way_partial_auroc(module.raw_scores((x, sex)).detach(), y, 0.6, 0.4))
    loader = DataLoader(dataset, batch_size=16)
    assert float(trainer.callback_metrics["val/tpauc"]) == pytest.approx(area, rel=1e-5)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    known = [TPAUCModule.load_from_checkpoint(tmp_path / f"{n}.ckpt", backbone=TwoInputs()) for n in ("a", "weights")]
    for trained in (module, *known):
        for what in (loader, PosNegDataModule(val_dataset=dataset, test_dataset=dataset)):
            for subject in ("validate", "test"):
                (found,) = getattr(make_trainer(precision="32-true"), subject)(trained, what, verbose=False)
                assert found[f"{'val' if subject == 'validate' else 'test'}/tpauc"] == pytest.approx(area, rel=1e-5)


@pytest.mark.parametrize("labelled", [False, True])
def test_predictions_on_items_with_and_without_labels(tmp_path, labelled):
    dataset, module = two_inputs()
    trainer = make_trainer(precision="32-true")
    trainer.fit(module, PosNegDataModule(dataset, num_pos=4, num_neg=10))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    known = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=TwoInputs())
    expected = module.raw_scores(dataset.tensors[:2]).detach()
    given = dataset if labelled else TensorDataset(*dataset.tensors[:2])
    for trained in (module, known):
        for what in (DataLoader(given, batch_size=16), PosNegDataModule(predict_dataset=given)):
            outputs = make_trainer(precision="32-true").predict(trained, what)
            assert_close(torch.cat([output["score"] for output in outputs]), expected, "float32")
    # a training set says it, too; without one nobody knows
    fresh = two_inputs()[1]
    with_training = PosNegDataModule(dataset, predict_dataset=given, num_pos=4, num_neg=10)
    scores = make_trainer(precision="32-true").predict(fresh, with_training)[0]["score"]
    assert_close(scores, fresh.raw_scores(dataset.tensors[:2]).detach(), "float32")
    if labelled:
        with pytest.raises(ArgumentError, match="what was trained on is unknown"):
            make_trainer(precision="32-true").predict(two_inputs()[1], DataLoader(given, batch_size=16))
        with pytest.raises(DataError, match="the 3 entries of the items of `predict_dataset`"):
            make_trainer(precision="32-true").predict(two_inputs()[1], PosNegDataModule(predict_dataset=given))


@pytest.mark.parametrize("subject", ["validate", "test", "predict"])
def test_masks_are_refused_in_loaders(subject):
    def make(data, rows):
        return [DataLoader(data, batch_size=16), DataLoader(Subset(data, rows), batch_size=16)]

    data, mask = TensorDataset(*make_problem()), torch.arange(104) >= 10
    quiet = {} if subject == "predict" else {"verbose": False}
    with pytest.raises(DataError, match=r"in `the data loader` has a mask as indices, .*np.flatnonzero\(mask\)"):
        getattr(make_trainer(precision="32-true"), subject)(make_module(), make(data, mask), **quiet)
    getattr(make_trainer(precision="32-true"), subject)(make_module(), make(data, mask.nonzero()[:, 0]), **quiet)


def test_a_loader_of_mappings_validates_as_one_of_pairs():
    x, y = make_problem()
    module, trainer = make_module(), make_trainer(precision="32-true")
    pairs = DataLoader(TensorDataset(x.float(), y), batch_size=16)
    mappings = DataLoader([{"x": own, "label": label} for own, label in zip(x.float(), y, strict=True)], batch_size=16)
    one, other = (trainer.validate(module, loader, verbose=False)[0] for loader in (pairs, mappings))
    assert one == other


@pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCAdvice")
def test_labels_with_an_area_of_zero_are_named_once(caplog):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, DIM, generator=generator)
    there, reversed_ = (x[:, :2] > 0.8).long(), (x[:, :2] * torch.tensor([-1.0, 1.0]) > 0.8).long()
    data = PosNegDataModule((x, there), val_dataset=(x, reversed_))
    torch.manual_seed(0)
    module = TPAUCModule(nn.Linear(DIM, 2), optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
    trainer = make_trainer(precision="32-true", max_epochs=2)
    for run in (trainer.fit, trainer.validate):
        caplog.clear()
        run(module, data)
        assert sum("No threshold lies in the rectangle of 1 of 2 labels" in r.message for r in caplog.records) == 1
    tested = DataLoader(TensorDataset(x, reversed_), batch_size=60)
    with pytest.warns(match="test/tpauc of 0 is 0: the ROC curve passes below the rectangle"):
        trainer.test(module, tested, verbose=False)
