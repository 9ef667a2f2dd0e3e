"""The data module, alone and under a Trainer."""

import multiprocessing
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc import TPAUCModule
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from tests.helpers.items import BatchedItems, Items, N, X, Y, draw, mapping, noisy, pair
from tests.helpers.recorder import Recorder, make_trainer
from tests.helpers.worlds import rank_of

DATA = TensorDataset(X, Y)


def ready(train=DATA, stage="fit", **kwargs):
    datamodule = PosNegDataModule(train, **{"num_pos": 3, "num_neg": 5, **kwargs})
    datamodule.setup(stage)
    return datamodule


def rows_of(loader):
    """Rows of X that the loader yields, recognised by their values."""
    inputs = torch.cat([batch.inputs for batch in loader])
    return (inputs[:, None] == X).all(dim=2).int().argmax(dim=1).tolist()


# ------------------------------------------------------------------ training batches


@pytest.mark.parametrize(
    ("train", "targets"),
    [
        pytest.param(DATA, None, id="TensorDataset"),
        pytest.param((X, Y), None, id="pair of tensors"),
        pytest.param((X.numpy(), Y.numpy()), None, id="pair of arrays"),
        pytest.param(X, Y, id="tensor"),
        pytest.param(X.numpy(), Y.tolist(), id="array"),
        pytest.param(ArrayDataset(X, Y), None, id="ArrayDataset"),
        pytest.param(Items(pair), None, id="items"),
        pytest.param(BatchedItems(pair), None, id="items in batches"),
        pytest.param([pair(row) for row in range(N)], None, id="list"),
        pytest.param(Subset(TensorDataset(X.flip(0), Y.flip(0)), range(N - 1, -1, -1)), None, id="Subset"),
        pytest.param(Subset(Subset(Items(pair), range(N)), torch.arange(N)), None, id="Subset of a Subset"),  # type: ignore[arg-type]  # a tensor of rows, as users pass it
        pytest.param(ConcatDataset([TensorDataset(X[:20], Y[:20]), Subset(DATA, range(20, N))]), None, id="Concat"),
    ],
)
def test_the_kind_of_data_set_changes_nothing(train, targets):
    datamodule = ready(train, targets=targets, num_dual_neg=2)
    batches, expected = list(datamodule.train_dataloader()), list(ready(num_dual_neg=2).train_dataloader())
    assert len(batches) == len(expected) == datamodule.steps_per_epoch == 10
    positives = X[Y]
    for batch, other in zip(batches, expected, strict=True):
        assert torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.inputs[:3], positives[batch.index])
        assert batch[2:] == (3, 5, 2, None, None, False)


def test_known_after_setup():
    datamodule = ready(val_fraction=0.25)
    assert (datamodule.num_positives, datamodule.num_negatives) == (9, 36)
    assert datamodule.steps_per_epoch == len(datamodule.train_dataloader()) == 8
    assert datamodule.fingerprint == ready(val_fraction=0.25).fingerprint
    assert datamodule.fingerprint != ready(val_fraction=0.25, split_seed=1).fingerprint != ready().fingerprint
    with rank_of(0, 2):
        assert datamodule.steps_per_epoch == 4


@pytest.mark.parametrize(
    ("sampling", "algorithms", "uniform"),
    [
        ("auto", "uniform", True),
        ("auto", "pos_neg", False),
        ("uniform", "pos_neg", True),
        ("pos_neg", "uniform", False),
    ],
)
def test_sampling_follows_the_algorithm(sampling, algorithms, uniform):
    module = Recorder(algorithm=SimpleNamespace(sampling=algorithms, needs_dual_negatives=True))
    make_trainer(max_epochs=1).fit(module, PosNegDataModule(DATA, num_pos=3, num_neg=5, sampling=sampling))
    sizes = [entry[-1] for entry in module.train_log]
    assert len(sizes) == (8 if uniform else 10)
    if uniform:
        assert {sum(size) for size in sizes} == {8}
        assert len(set(sizes)) > 1
    else:
        assert set(sizes) == {(3, 5, 5)}


def test_few_positives_are_all_in_every_step_and_it_says_so_once():
    with pytest.warns(
        TPAUCWarning, match=r"12 positives instead of 20 \(`num_pos`=20 on 1 rank\(s\)\): every step takes all"
    ):
        datamodule = ready(num_pos=20)
    batch = next(iter(datamodule.train_dataloader()))  # a second warning would be an error
    assert datamodule.steps_per_epoch == 10
    assert sorted(batch.index.tolist()) == list(range(12))
    assert batch.num_pos == 12


# ------------------------------------------------------------------ validation, test, prediction


def test_no_validation_data_no_loader():
    assert ready().val_dataloader() == []
    module = Recorder()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        datamodule = PosNegDataModule(DATA, num_pos=3, num_neg=5)
        make_trainer(max_epochs=1, num_sanity_val_steps=2).fit(module, datamodule)
    assert [str(w.message) for w in seen if "loader" in str(w.message) or "length" in str(w.message)] == []
    assert module.eval_log == []
    # the same data module validates as soon as it can
    datamodule.val_dataset = DATA
    make_trainer(max_epochs=1).fit(module, datamodule)
    assert len(module.eval_log) == 1


def test_trainer_runs_every_stage_without_warnings():
    module = Recorder()
    datamodule = PosNegDataModule(
        DATA, test_dataset=DATA, predict_dataset=X, num_pos=3, num_neg=5, val_fraction=0.25, batch_size=7
    )
    trainer = make_trainer(max_epochs=1, num_sanity_val_steps=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.fit(module, datamodule)
        trainer.validate(module, datamodule, verbose=False)
        trainer.test(module, datamodule, verbose=False)
        predictions = trainer.predict(module, datamodule)
    assert [str(w.message) for w in seen if "loader" in str(w.message)] == []
    assert torch.cat(predictions).tolist() == list(range(N))
    assert [len(entry[0]) for entry in module.eval_log] == [7, 7] + [7, 7, 1] * 2 + [7] * 8 + [4]


def test_only_what_a_stage_needs_is_read():
    def unreadable(row):
        raise AssertionError(row)

    datamodule = PosNegDataModule(Items(unreadable), test_dataset=Items(pair))
    datamodule.setup("test")
    assert sum(len(batch.target) for batch in datamodule.test_dataloader()) == N


@pytest.mark.parametrize("split", [{"val_fraction": 0.25}, {"num_folds": 4, "fold": 1}])
def test_random_items_do_not_validate_without_a_word(split):
    datamodule = ready(Items(noisy), **split)
    with pytest.warns(TPAUCWarning, match=r"`train_dataset` are random, .*attribute `without_augmentation`, .*`val_da"):
        datamodule.val_dataloader()
    datamodule.val_dataloader()  # said once: a second warning would be an error
    for train in (Items(noisy, without_augmentation=Items(pair)), part := Subset(Items(noisy), range(N))):
        part.without_augmentation = Subset(Items(pair), range(N))
        ready(train, **split).val_dataloader()
    ready(Items(noisy), val_dataset=DATA).val_dataloader()
    for train in (DATA, Items(pair), Items(mapping), Items(lambda row: ("word", torch.nan, row % 5 == 0))):
        ready(train, **split).val_dataloader()


def rolled(row):
    return pair((row + 1) % N)


@pytest.mark.parametrize("train", [{}, {"targets": Y}])
@pytest.mark.parametrize("plain", [Items(rolled), Items(rolled, targets=Y.roll(-1)), Items(pair, N - 1)])
def test_other_rows_without_augmentation_are_refused(train, plain):
    for dataset in (Items(noisy, **train, without_augmentation=plain), Items(pair, without_augmentation=plain)):
        for given in ({}, {"targets": Y.tolist()}):
            with pytest.raises(DataError, match=r"`without_augmentation` .*(59 rows|of `train_dataset` has other)"):
                ready(dataset, val_fraction=0.25, num_neg=5, **given).val_dataloader()
    with pytest.raises(DataError, match="`without_augmentation`"):
        ready(test_dataset=Items(pair, without_augmentation=plain)).test_dataloader()


def test_parts_number_their_classes_alike():
    train, lacking = Items(pair, class_to_idx={"crack": 0, "good": 1}), Items(pair, class_to_idx={"good": 0})
    with pytest.raises(DataError, match="`test_dataset` numbers 'good' 0, and `train_dataset` 1"):
        ready(train, test_dataset=lacking, num_neg=5).test_dataloader()
    lacking.target_transform = int  # says itself which is which
    ready(train, test_dataset=lacking, num_neg=5).test_dataloader()


def test_scoring_covers_each_class_in_the_order_of_the_index():
    datamodule = ready(val_fraction=0.25, batch_size=4)
    positives, negatives = datamodule.scoring_dataloaders()
    assert torch.cat([b.example_id for b in positives]).tolist() == list(range(9))
    assert torch.cat([b.example_id for b in negatives]).tolist() == list(range(36))
    assert {t for b in positives for t in b.target.tolist()} == {1}
    assert {t for b in negatives for t in b.target.tolist()} == {0}
    own = torch.cat([b.inputs for b in positives])
    for batch in datamodule.train_dataloader():
        assert torch.equal(batch.inputs[:3], own[batch.index])
    assert not set(rows_of(negatives)) & set(rows_of(datamodule.val_dataloader()))


# ------------------------------------------------------------------ subclasses, randomness, workers


class Scaled(PosNegDataModule):
    """Divides by the training rows' largest entry."""

    def build_datasets(self, stage):
        self.calls = [*getattr(self, "calls", []), stage]
        return Datasets(train=DATA, test=DATA)

    def fit_transforms(self, datasets, train_rows):
        self.rows = train_rows
        return datasets._replace(train=TensorDataset(X / X[train_rows].max(), Y), test=TensorDataset(X / 2, Y))


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_transforms_are_fitted_on_training_rows(stage):
    datamodule = Scaled(val_fraction=0.25, num_pos=3, num_neg=5)
    datamodule.setup(stage)
    assert torch.equal(next(iter(datamodule.test_dataloader())).inputs, X / 2)
    assert datamodule.calls == [stage]
    assert len(datamodule.rows) == 45
    held_out = sorted(set(range(N)) - set(datamodule.rows.tolist()))
    expected = X[held_out] / X[datamodule.rows].max()
    assert torch.equal(next(iter(datamodule.val_dataloader())).inputs, expected)


@pytest.mark.filterwarnings("ignore:The items of `train_dataset` are random")
@pytest.mark.parametrize("workers", [0, 2])
def test_leaves_the_global_generators_alone(workers):
    torch.manual_seed(0)
    np.random.seed(0)
    expected = draw()[1:]
    torch.manual_seed(0)
    np.random.seed(0)
    datamodule = ready(Items(noisy), val_fraction=0.25, num_workers=workers)
    for loader in (datamodule.train_dataloader(), datamodule.val_dataloader(), *datamodule.scoring_dataloaders()):
        assert len(list(loader)) > 0
    assert draw()[1:] == expected
    datamodule.teardown("fit")


@pytest.mark.parametrize("val_fraction", [None, 0.25])
def test_workers_end_with_a_run_that_fails(val_fraction):
    """At once, though the exception still holds the iteration; torch would leave them to the garbage collector."""

    class Failing(Recorder):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                msg = "in a step"
                raise RuntimeError(msg)
            return super().training_step(batch, batch_idx)

    before = set(multiprocessing.active_children())
    datamodule = PosNegDataModule(DATA, num_pos=3, num_neg=5, num_workers=2, val_fraction=val_fraction)
    with pytest.raises(RuntimeError, match="in a step") as caught:
        make_trainer(num_sanity_val_steps=1).fit(Failing(), datamodule)
    assert caught.traceback
    assert set(multiprocessing.active_children()) == before


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_pos": 0}, "`num_pos` to be a whole number of at least 1, but got 0"),
        ({"sampling": "both"}, "`sampling` to be one of 'auto', 'pos_neg', 'uniform', 'full', but got 'both'"),
        ({"val_fraction": 0.5, "num_folds": 3, "fold": 0}, "one source, but got val_fraction and num_folds"),
        ({"fold": 0}, "`num_folds` and `fold` together, but got None and 0"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        PosNegDataModule(DATA, **arguments)


@pytest.mark.parametrize("name", ["seed", "split_seed"])
@pytest.mark.parametrize("value", [1.5, "7", -1, 2**64, True])
def test_refuses_seeds(name, value):
    with pytest.raises(ArgumentError, match=rf"`{name}` to be a whole number in 0 .. 2\*\*\d\d - 1, but got {value!r}"):
        PosNegDataModule(DATA, **{name: value})


@pytest.mark.parametrize(
    ("precision", "seen"), [("32-true", torch.float32), ("bf16-mixed", torch.float32), ("64-true", torch.float64)]
)
def test_floats_of_numpy_become_the_models(precision, seen):
    """NumPy's default is float64 and torch's float32; whoever has tensors of another dtype meant it."""

    class Looking(Recorder):
        seen: tuple = ()

        def training_step(self, batch, batch_idx):
            self.seen += (batch.inputs.dtype,)
            return super().training_step(batch, batch_idx)

    x = X.numpy().astype(np.float64)
    for train, targets in (((x, Y), None), (x, Y)):
        module = Looking()
        datamodule = PosNegDataModule(train, num_pos=3, num_neg=5, targets=targets, val_dataset=(x, Y))
        make_trainer(max_epochs=1, precision=precision).fit(module, datamodule)
        assert {*module.seen} == {seen}
        assert len(module.eval_log) == 1
    # the same data in a model of double precision: nothing is lost
    module = Looking().double()
    make_trainer(max_epochs=1, precision="32-true").fit(module, datamodule)
    assert {*module.seen} == {torch.float64}


def test_refuses_data():
    with pytest.raises(DataError, match="got 0 positive examples"):
        ready((X, torch.zeros(N)))
    with pytest.raises(DataError, match=r"One step takes 50 negatives .*only 48. Set `num_neg` to at most 48"):
        ready(num_neg=50)
    with pytest.raises(DataError, match=r"`train_dataset`, but found -1, 1.*y == 1"):
        ready((X, 2 * Y.int() - 1))
    with pytest.raises(DataError, match=r"`val_dataset`, but found 1, 2"):
        ready(val_dataset=(X, Y.int() + 1)).val_dataloader()


def test_says_what_is_missing():
    with pytest.raises(DataError, match="no training set: pass `train_dataset`, and call"):
        PosNegDataModule(DATA).num_positives  # noqa: B018
    with pytest.raises(DataError, match="pass `test_dataset`, or return `test` from `build_datasets`"):
        ready().test_dataloader()
    with pytest.raises(DataError, match="pass `predict_dataset`"):
        ready().predict_dataloader()
    with pytest.raises(DataError, match="no validation set: pass `val_dataset`, `val_fraction`"):
        make_trainer().validate(Recorder(), PosNegDataModule(DATA), verbose=False)


def test_a_loader_of_ones_own_validates_after_a_fit_without_validation():
    trainer, module = make_trainer(max_epochs=1), Recorder()
    trainer.fit(module, PosNegDataModule(DATA, num_pos=2, num_neg=2))
    loader = PosNegDataModule(val_dataset=DATA)
    loader.setup("validate")
    trainer.validate(module, loader.val_dataloader(), verbose=False)
    assert sum(len(entry[0]) for entry in module.eval_log) == N


def table():
    return pd.DataFrame(X.numpy(), columns=[f"x{k}" for k in range(X.shape[1])]).assign(label=Y.int().numpy())


def test_a_table_without_named_labels_is_refused_with_both_remedies():
    with pytest.raises(
        DataError, match=r"unknown which column of `train_dataset` is the label: name .* or pass a pair"
    ):
        ready(table())


@pytest.mark.parametrize("targets", ["lable", ["label", "lable"]])
def test_a_name_that_is_no_column_is_shown_beside_those_there_are(targets):
    with pytest.raises(DataError, match=r"`train_dataset` has no 'lable': name one of .*\blabel\b"):
        ready(table(), targets=targets)
    part = table().drop(columns="label")
    with pytest.raises(DataError, match="`val_dataset` has no 'label': name one of "):
        ready(table(), val_dataset=part, targets="label")
    ready(table(), predict_dataset=part, targets="label")


def test_labels_in_place_of_a_validation_set_are_recognised():
    with pytest.raises(ArgumentError, match=r"Are these the labels\? Then pass a pair"):
        PosNegDataModule(X, Y, val_fraction=0.3)


def test_loaders_of_a_subclass_validate_where_there_is_no_validation_set():
    class Mine(PosNegDataModule):
        def val_dataloader(self):
            return torch.utils.data.DataLoader(TensorDataset(X, torch.as_tensor(Y)), batch_size=4)

    trainer, module = make_trainer(max_epochs=1), TPAUCModule(torch.nn.Linear(X.shape[1], 1))
    data = Mine((X, Y), num_pos=2, num_neg=4)
    trainer.fit(module, data)
    assert "val/tpauc" in trainer.callback_metrics
    assert "val/tpauc" in trainer.validate(module, data, verbose=False)[0]
