"""Tables, labels and habits of everybody: right, or one line; never a plausible wrong number."""

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_tpauc import PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.errors import DataError, TPAUCError, TPAUCWarning

pytestmark = pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCAdvice", "ignore:86 % of the labels")
QUIET = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
    "enable_checkpointing": False,
}  # fmt: skip


def table(n=400, seed=0):
    generator = np.random.default_rng(seed)
    made = pd.DataFrame(generator.normal(size=(n, 3)), columns=["crp", "age", "pulse"])
    made["died"] = (2 * made.crp - made.age + 0.5 * generator.normal(size=n) > 2).astype(int)
    return made


TABLE = table()
INPUTS = ["crp", "age", "pulse"]


class Polar:
    """As much of a table of polars as is used: columns without an index, dtypes without a kind."""

    def __init__(self, data):
        self.data = data

    @property
    def columns(self):
        return list(self.data)

    def __len__(self):
        return len(next(iter(self.data.values())))

    def __getitem__(self, names):
        return Polar({n: self.data[n] for n in names}) if isinstance(names, list) else Column(names, self.data[names])

    def to_numpy(self):
        return np.column_stack(list(self.data.values()))


class Column:
    def __init__(self, name, values):
        self.name, self.values, self.dtype = name, values, object()

    def __len__(self):
        return len(self.values)

    def to_numpy(self):
        return self.values

    def __array__(self, *args, **kwargs):
        return self.values


def polar(frame):
    return Polar({name: frame[name].to_numpy() for name in frame})


def ready(*args, stage="fit", **kwargs):
    data = PosNegDataModule(*args, **{"num_pos": 8, "num_neg": 16, **kwargs})
    data.setup(stage)
    return data


def fitted(data=None, net=None, epochs=2):
    torch.manual_seed(0)
    module = TPAUCModule(nn.Linear(3, 1) if net is None else net)
    trainer = Trainer(max_epochs=epochs, **QUIET)
    trainer.fit(module, ready(TABLE, targets="died", val_fraction=0.25) if data is None else data)
    return module


def scores(module, data):
    return torch.cat([out["score"] for out in Trainer(**QUIET).predict(module, data)])


# ---------------------------------------------------------------- columns go by their names


def test_tables_in_another_order_have_the_same_scores_and_areas(tmp_path):
    module = fitted()
    x, other = table(seed=5)[INPUTS], table(seed=5)[["pulse", "crp", "age"]]
    expected = module.backbone(torch.tensor(x.to_numpy(), dtype=torch.float32))[:, 0]
    area = roc_auc_score(table(seed=5).died, expected.detach())
    module.trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=nn.Linear(3, 1))
    for model in (module, loaded):
        for data in (x, other, polar(other), (other, np.zeros(400))):
            torch.testing.assert_close(scores(model, PosNegDataModule(predict_dataset=data)), expected)
        for test in (table(seed=5), table(seed=5)[["died", *other]], (other, table(seed=5)["died"])):
            data = PosNegDataModule(test_dataset=test, targets=None if isinstance(test, tuple) else "died")
            (found,) = Trainer(**QUIET).test(model, data, verbose=False)
            assert found["test/auroc"] == pytest.approx(area, abs=1e-5)


@pytest.mark.parametrize("part", ["val_dataset", "test_dataset"])
def test_parts_of_one_module_follow_the_training_table(part):
    data = ready(TABLE, targets="died", **{part: TABLE[["died", "pulse", "age", "crp"]]})
    loader = data.val_dataloader() if part == "val_dataset" else data.test_dataloader()
    batch = next(iter(loader))
    torch.testing.assert_close(batch.inputs, torch.tensor(TABLE[INPUTS].to_numpy()))
    assert batch.target.tolist() == TABLE.died.tolist()


def test_a_new_run_from_a_checkpoint_keeps_its_columns(tmp_path):
    fitted(epochs=3).trainer.save_checkpoint(tmp_path / "a.ckpt")
    weights = []
    for given in (TABLE, TABLE[["died", "pulse", "age", "crp"]]):
        data = PosNegDataModule(given, targets="died", val_fraction=0.25, num_pos=8, num_neg=16)
        torch.manual_seed(0)
        module = TPAUCModule(nn.Linear(3, 1), init_from=str(tmp_path / "a.ckpt"))
        Trainer(max_epochs=1, **QUIET).fit(module, data)
        weights.append(module.backbone.weight[0])
    assert torch.equal(*weights)
    assert weights[0].abs().argmax() == 0  # as the labels are made


def test_other_columns_are_refused_by_name():
    module, x = fitted(), TABLE[INPUTS]
    for other, words in (
        (x.rename(columns={"age": "years"}), "years besides and lacks age"),
        (x[["crp", "age"]], "lacks pulse"),
        (x.assign(ward=1.0), "has ward besides"),
        (TABLE, "has died besides. Encode it by what was fitted to the training table"),
    ):
        with pytest.raises(DataError, match=f"`predict_dataset` has other columns .*{words}"):
            scores(module, PosNegDataModule(predict_dataset=other))
        with pytest.raises(DataError, match=f"`test_dataset` has other columns .*{words}"):
            ready((x, TABLE.died), test_dataset=(other, TABLE.died)).test_dataloader()
    wards = [pd.get_dummies(pd.Series([*letters] * 100), prefix="ward", dtype=float) for letters in ("ABCA", "BCDB")]
    with pytest.raises(DataError, match="has ward_D besides and lacks ward_A"):
        ready((wards[0], TABLE.died), val_dataset=(wards[1], TABLE.died)).val_dataloader()
    again = ready((x.rename(columns={"age": "years"}), TABLE.died))
    with pytest.raises(DataError, match="`train_dataset` has other columns"):  # a second training goes on with them
        Trainer(max_epochs=1, **QUIET).fit(module, again)


def test_duplicate_columns_are_refused_and_numbers_are_names():
    with pytest.raises(DataError, match="`train_dataset` has more than one column 'age'"):
        ready(TABLE[["crp", "age", "age", "died"]], targets="died")
    numbered = TABLE.set_axis(range(4), axis=1).assign(patient=np.arange(400) // 2).rename(columns={"patient": 7})
    data = ready(numbered, targets=3, groups=7, val_fraction=0.25)
    assert data.columns == ("0", "1", "2")
    assert data.num_positives + data.val_dataloader().targets.sum() == TABLE.died.sum()


# ---------------------------------------------------------------- what arguments name is no input


class Rows(Dataset):
    def __init__(self, label="died", **others):
        self.label, self.others = label, others

    def __len__(self):
        return 400

    def __getitem__(self, row):
        item = {"age": torch.tensor([TABLE.age[row]]), "crp": torch.tensor([TABLE.crp[row]])}
        return item | {self.label: int(TABLE.died[row])} | {name: make(row) for name, make in self.others.items()}


@pytest.mark.parametrize(
    ("items", "options"),
    [
        (Rows(), {"targets": "died"}),
        (Rows("label"), {}),
        (Rows("label"), {"targets": (1 - TABLE.died).tolist()}),
        (Rows("label"), {"targets": lambda label: label == 1}),
        (Rows(w=lambda k: 1.0, who=lambda k: k // 2), {"targets": "died", "groups": "who", "sample_weight": "w"}),
        (Rows(pid=str), {"targets": "died", "ids": "pid"}),
        (Rows(ill=lambda k: int(k % 7 == 0)), {"targets": ["died", "ill"]}),
    ],
    ids=["named", "usual", "beside", "function", "groups and weights", "ids", "several"],
)
def test_no_loader_shows_what_arguments_name(items, options):
    data = ready(items, predict_dataset=items, val_fraction=0.25, num_neg=8, **options)
    loaders = [data.train_dataloader(), data.val_dataloader(), data.predict_dataloader(), *data.scoring_dataloaders()]
    for loader in loaders:
        assert set(next(iter(loader)).inputs) == {"age", "crp"}


def test_labels_that_are_still_among_the_inputs_are_refused():
    with pytest.raises(DataError, match="'died' in `train_dataset` equals the labels"):
        ready(Rows(), targets=TABLE.died.tolist())
    for x, y in ((TABLE, TABLE.died.to_numpy()), (TABLE.assign(alive=1 - TABLE.died).drop(columns="died"), TABLE.died)):
        with pytest.raises(DataError, match=r"'(died|alive)' in `train_dataset` equals the labels"):
            ready((x, y))
    assert ready(TABLE, targets=TABLE["died"] == 1).columns == tuple(INPUTS)  # a column names itself
    numbers, labels = TABLE.to_numpy(), TABLE.died.to_numpy(copy=True)
    for x, y in ((numbers, labels), (torch.from_numpy(numbers), torch.from_numpy(labels))):
        with pytest.raises(DataError, match="Column 3 in `train_dataset` equals the labels"):
            ready((x, y))


@pytest.mark.parametrize("pair", [(TABLE, table(seed=1)), [TABLE[:250], TABLE[250:]], (TABLE, TABLE.crp > 0)])
def test_the_labels_of_a_pair_are_not_replaced_by_a_column_that_targets_names(pair):
    with pytest.raises(DataError, match=r"`targets='died'` names columns of the table .* is a pair"):
        ready(pair, targets="died")


def test_targets_names_the_labels_of_tables_and_leaves_those_of_pairs():
    for y in (TABLE.died, TABLE.died.to_numpy(), TABLE[["died"]]):
        data = ready(TABLE, targets="died", test_dataset=(TABLE[INPUTS], y), stage="test")
        labels = torch.cat([batch.target for batch in data.test_dataloader()])
        assert labels.ravel().tolist() == TABLE.died.tolist()
    other = ready(TABLE, targets="died", test_dataset=(TABLE[INPUTS], TABLE.died.rename("sick")), stage="test")
    with pytest.raises(DataError, match="looked for 'died'"):
        other.test_dataloader()


class Stored(Rows):
    labels = TABLE.died.tolist()


@pytest.mark.parametrize("items", [Stored(), Rows("label", labels=lambda k: int(TABLE.died[k]))])
def test_labels_under_a_second_name_are_refused(items):
    with pytest.raises(DataError, match=r"'(died|label)' in `train_dataset` equals the labels"):
        ready(items, targets="labels")


def test_a_pair_of_a_mapping_and_the_label_has_one_form_for_all_loaders():
    """A label that is still in the mapping is no input in training, nor in loaders of the user's own."""

    class Net(nn.Linear):
        def forward(self, inputs):
            assert set(inputs) == {"age", "crp"}
            return super().forward(torch.cat([inputs["age"], inputs["crp"]], 1).float())

    pairs = [(Rows("label")[k], int(TABLE.died[k])) for k in range(400)]
    module, trainer = TPAUCModule(Net(2, 1)), Trainer(max_epochs=1, **QUIET)
    trainer.fit(module, PosNegDataModule(pairs, num_pos=8, num_neg=24))
    loader = DataLoader(pairs, batch_size=50)
    (values,) = trainer.test(module, loader, verbose=False)
    found = torch.cat([batch["score"] for batch in trainer.predict(module, loader)])
    assert values["test/auroc"] == pytest.approx(roc_auc_score(TABLE.died, found))


def test_an_area_far_below_chance_asks_for_the_class():
    """As where `targets` turned labels round in training, and nobody does so in the test."""
    x, module = torch.arange(20.0)[:, None], TPAUCModule(nn.Linear(1, 1))
    nn.init.ones_(module.backbone.weight)
    with pytest.warns(TPAUCWarning, match="; AUROC 0 is far below chance: look which class is 1 here and in training"):
        Trainer(**QUIET).test(module, DataLoader([(row, int(row < 5)) for row in x]), verbose=False)


def test_a_graph_loses_the_attribute_that_holds_its_label():
    data = pytest.importorskip("torch_geometric.data")
    graphs = [
        data.Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), active=torch.tensor([k % 5 == 0]), y=k)
        for k in range(40)
    ]
    batch = next(iter(ready(graphs, targets="active", num_pos=2, num_neg=4).train_dataloader())).inputs
    assert set(batch.keys()) == {"x", "edge_index", "y", "batch", "ptr"}
    assert graphs[0].active is not None


class Collated:
    """What a collate_fn of Hugging Face calls labels is none of the items' keys."""

    def __call__(self, items):
        return {"ids": torch.stack([item["age"] for item in items]), "labels": torch.tensor([i["died"] for i in items])}


def test_labels_that_a_collate_fn_renames_are_no_inputs():
    data = ready(Rows(), targets="died", collate_fn=Collated())
    assert set(next(iter(data.train_dataloader())).inputs) == {"ids"}


def test_items_to_predict_keep_what_the_model_was_trained_on():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, batch):
            return self.linear(torch.cat([*batch.values()], 1).float())

    module = fitted(ready(Rows(), targets="died"), Net())
    expected = scores(module, PosNegDataModule(predict_dataset=Rows(), targets="died"))
    assert torch.equal(scores(module, PosNegDataModule(predict_dataset=Rows())), expected)  # in a script of its own
    for extra in ({}, {"pid": str}):  # which nobody names
        data = PosNegDataModule(test_dataset=Rows(**extra), targets="died")
        (found,) = Trainer(**QUIET).test(module, data, verbose=False)
        assert found["test/auroc"] == pytest.approx(roc_auc_score(TABLE.died, expected), abs=1e-5)
    with pytest.raises(DataError, match="trained on items with age, crp, but these lack crp"):
        scores(module, PosNegDataModule(predict_dataset=[{"age": torch.zeros(1)}] * 3))


# ---------------------------------------------------------------- labels of every part


class Images(Dataset):
    """Folders as torchvision reads them: classes in `targets`, and in the items."""

    def __init__(self, rows):
        self.rows, self.targets = rows, [int(row % 10 != 0) for row in rows]  # 0: defect, 1: ok

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return torch.tensor([float(self.rows[k])]), self.targets[k]


def test_targets_as_values_hold_for_the_training_set_alone():
    train, val = Images(range(100)), Images(range(100, 160))
    given = [1 - label for label in train.targets]
    with pytest.raises(DataError, match=r"`targets` are the labels of `train_dataset` alone.*lambda label"):
        ready(train, val, targets=given).val_dataloader()
    ready(train, targets=given, val_fraction=0.3, num_pos=4).val_dataloader()
    with pytest.warns(TPAUCWarning, match="90 %"):  # the labels that the items have
        ready(train, Images(range(60)), targets=train.targets, num_neg=4).val_dataloader()
    data = ready(train, val, targets=lambda label: label == 0)
    assert data.num_positives == 10
    assert data.val_dataloader().targets.sum() == 6


FOLDER = Images(range(100))
READ = [(torch.ones(1), ["defect", "ok"][label]) for label in FOLDER.targets]


@pytest.mark.parametrize(
    "train", [FOLDER, READ, Subset(Images(range(200)), range(100)), (torch.ones(100, 1), torch.tensor(FOLDER.targets))]
)
def test_targets_in_another_order_are_not_taken_without_a_word(train):
    with pytest.warns(TPAUCWarning, match=r"`targets` .* another order .* and 3 have the same label, (ok|1),"):
        ready(train, targets=[int(row % 10 == 3) for row in range(100)], num_pos=4)


def test_a_majority_of_positives_is_said_once():
    with pytest.warns(TPAUCWarning, match=r"^90 % of the labels of `train_dataset` are 1, the class to be found"):
        data = ready(Images(range(100)), num_neg=4)
    data.train_dataloader()  # a second warning would be an error


def test_the_advice_on_text_labels_works():
    y, x = np.where(TABLE.died == 1, "dead", "alive"), TABLE[INPUTS]
    with pytest.raises(DataError, match=r"`targets=\(y == 'dead'\)`.*`targets=lambda label: label == 'dead'`"):
        ready((x, y))
    status = x.assign(status=y)
    with pytest.raises(DataError, match=r"`targets` names has 0 and 1 by `table\[name\] = table\[name\] == 'dead'`"):
        ready(status, targets="status")
    for data in (
        ready((x, y), targets=(y == "dead")),
        ready((x, pd.Series(y)), targets=lambda label: label == "dead"),
        ready(status, targets=status["status"] == "dead"),
        ready(status.assign(status=y == "dead"), val_dataset=status.assign(status=y == "dead"), targets="status"),
        ready(x, targets=(y == "dead").tolist()),
    ):
        assert data.num_positives == TABLE.died.sum()
        assert data.columns == tuple(INPUTS)


# ---------------------------------------------------------------- indices, arguments and missing cells


@pytest.mark.parametrize("argument", ["groups", "sample_weight", "targets"])
def test_a_column_in_another_order_is_refused(argument):
    values = {"groups": np.arange(400) // 2, "sample_weight": np.arange(400) + 1.0, "targets": TABLE.died.to_numpy()}
    column = pd.Series(values[argument], index=TABLE.index)
    options = {"targets": "died", "val_fraction": 0.25, argument: column[::-1]}
    train = TABLE if argument != "targets" else TABLE[INPUTS]
    with pytest.raises(DataError, match=f"`{argument}` in `train_dataset` have the same index in different orders"):
        ready(train, **options)
    ready(train, **{**options, argument: column[::-1].loc[TABLE.index]})
    if argument != "targets":  # inputs without an index go by that of the labels
        with pytest.raises(DataError, match="have the same index in different orders"):
            ready((TABLE[INPUTS].to_numpy(), TABLE.died), **{**options, "targets": None, argument: column[::-1]})


def test_indices_that_overlap_elsewhere_are_refused_and_counts_are_no_names():
    x, y, mixed = TABLE[INPUTS], TABLE.died, ["a", *range(399)]
    for one, other in ((range(7, 407), range(9, 409)), (mixed, mixed[::-1])):
        with pytest.raises(DataError, match="have the same index in different orders, or parts of it"):
            ready((x.set_axis(one), y.set_axis(other)))
    drawn = TABLE.sample(400, replace=True, random_state=0)
    for one, other in ((range(0, 800, 2), range(400)), (range(400), range(0, 800, 2)), (drawn.index, range(400))):
        assert ready((x.set_axis(one), y.set_axis(other))).num_positives == y.sum()


def test_groups_may_be_the_index():
    options = {"targets": "died", "val_fraction": 0.25}
    by_name = ready(TABLE.set_index(pd.Index(np.arange(400) // 4, name="patient")), groups="patient", **options)
    by_value = ready(TABLE, groups=np.arange(400) // 4, **options)
    one, other = (torch.cat([b.inputs for b in data.val_dataloader()]) for data in (by_name, by_value))
    assert torch.equal(one, other)


def test_ids_in_another_order_are_refused():
    names = pd.Series([f"p{k}" for k in range(400)])
    with pytest.raises(DataError, match="`ids` in `predict_dataset` have the same index in different orders"):
        ready(predict_dataset=TABLE[INPUTS], ids=names[::-1], stage="predict").predict_dataloader()


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("sample_weight", -1.0, "finite numbers of at least 0, but row 7 has -1.0, and 1 of 400"),
        ("sample_weight", np.nan, "row 7 has nan"),
        ("groups", None, "no value for row 7, and for 1 of 400 rows"),
    ],
)
def test_a_row_without_a_weight_or_a_group_is_named(argument, value, words):
    values = [1.0] * 7 + [value] + [1.0] * 392
    with pytest.raises(TPAUCError, match=words):
        ready(TABLE, targets="died", val_fraction=0.25, **{argument: values})


def test_arguments_that_change_take_effect():
    data = ready(TABLE, targets="died", num_folds=4, fold=0)
    held_out = []
    for fold in range(4):
        data.fold = fold
        held_out += data.val_dataloader().rows.tolist()
        assert data.num_positives + data.val_dataloader().targets.sum() == TABLE.died.sum()
    assert sorted(held_out) == list(range(400))
    first = data.val_dataloader().rows.tolist()
    data.split_seed = 1
    assert data.val_dataloader().rows.tolist() != first
    data.num_folds, data.fold, data.val_fraction = None, None, 0.1
    assert len(data.val_dataloader().rows) == 40
    data.sample_weight = np.where(TABLE.age > 0, 1.0, 0.0)
    assert data.num_positives < TABLE.died.sum()
    data.sample_weight, data.groups = None, np.arange(400) // 2
    assert not set(data.val_dataloader().rows // 2) & set(data._prepared.training.rows // 2)
    data.groups, data.targets = None, "pulse"
    with pytest.raises(DataError, match="labels 0 and 1"):
        data.train_dataloader()


@pytest.mark.parametrize("form", [lambda frame: frame, polar], ids=["pandas", "polars"])
@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.Timestamp("2020-01-01"), "no numbers in seen.*dates become numbers by"),
        ("ward B", "no numbers in seen.*ColumnTransformer"),
    ],
)
def test_dates_and_texts_are_refused_by_name(form, column, words):
    with pytest.raises(DataError, match=words):
        ready(form(TABLE.assign(seen=column)), targets="died")


def test_a_table_of_polars_trains_as_one_of_pandas():
    ours, theirs = (ready(form, targets="died").train_dataloader() for form in (polar(TABLE), TABLE))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.inputs, other.inputs)


def test_empty_cells_are_counted_by_column():
    x = TABLE[INPUTS].copy()
    x.loc[[3, 5], "age"] = np.nan
    x.loc[7, "crp"] = np.nan
    data = ready((x, TABLE.died), predict_dataset=x)
    assert data.missing_values() == {"crp": 1, "age": 2}
    with pytest.warns(TPAUCWarning, match=r"3 cells of `predict_dataset` are empty or infinite: crp \(1\), age \(2\)"):
        data.predict_dataloader()


# ---------------------------------------------------------------- predictions of what was held out


@pytest.mark.parametrize("how", ["index", "column", "values", "rows"])
def test_predictions_of_a_fold_have_the_ids_of_the_table(how, tmp_path):
    names = [f"P{k}" for k in range(400)]
    train = {"index": TABLE.set_axis(names), "column": TABLE.assign(who=names)}.get(how, TABLE)
    ids = {"column": "who", "values": names}.get(how)
    module, seen = fitted(), []
    for fold in range(4):
        kwargs = {"targets": "died", "ids": ids, "num_folds": 4, "fold": fold}
        data = PosNegDataModule(train, **kwargs)
        for given in (
            ({"datamodule": data}, {"dataloaders": data.val_dataloader()}) if fold else ({"datamodule": data},)
        ):
            path = tmp_path / f"{fold}.csv"
            Trainer(callbacks=[PredictionWriter(str(path))], **QUIET).predict(module, **given)
            found = pd.read_csv(path)
            rows = data.val_dataloader().rows
            assert found.id.tolist() == ([names[row] for row in rows] if how != "rows" else rows.tolist())
            x = torch.tensor(TABLE[INPUTS].to_numpy()[rows], dtype=torch.float32)
            np.testing.assert_allclose(found.score, module.backbone(x).detach()[:, 0], rtol=1e-5, atol=1e-6)
        seen += rows.tolist()
    assert sorted(seen) == list(range(400))


def test_a_fold_of_items_has_their_ids():
    data = ready(Rows(pid=lambda k: f"P{k}"), targets="died", ids="pid", num_folds=4, fold=1)
    loader = data.predict_dataloader()
    assert loader.ids.tolist() == [f"P{row}" for row in loader.rows]


def test_an_index_of_several_levels_is_written_as_text(tmp_path):
    index = pd.MultiIndex.from_arrays([np.arange(400) // 2, np.arange(400) % 2], names=["patient", "visit"])
    writer = Trainer(callbacks=[PredictionWriter(str(tmp_path / "p.csv"))], **QUIET)
    writer.predict(fitted(), PosNegDataModule(predict_dataset=TABLE[INPUTS].set_axis(index)))
    assert pd.read_csv(tmp_path / "p.csv").id.tolist()[:3] == ["(0, 0)", "(0, 1)", "(1, 0)"]


# ---------------------------------------------------------------- other habits


class Single(Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 100

    def __getitem__(self, k):
        return self.item(k, torch.randn(3, generator=torch.Generator().manual_seed(k)), int(k % 5 == 0))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)


class Whole(Plain):
    def forward(self, batch):
        return self.linear(batch["image"])


@pytest.mark.parametrize("net", [Plain, Whole])
def test_one_input_in_a_dictionary(net):
    items = Single(lambda k, x, y: {"image": x, "label": y})
    module = fitted(ready(items, val_fraction=0.25), net())
    expected = module.backbone.linear(torch.stack([items[k]["image"] for k in range(100)]))[:, 0]
    torch.testing.assert_close(scores(module, PosNegDataModule(predict_dataset=items)), expected)
    torch.testing.assert_close(scores(module, DataLoader(items, batch_size=32)), expected)


def test_a_model_takes_the_entry_that_it_names():
    class Named(Plain):
        def forward(self, image):
            return self.linear(image)

    items = Single(lambda k, x, y: {"image": x, "meta": {"spacing": 1.0}, "label": y})
    module = fitted(ready(items, val_fraction=0.25), Named())
    expected = module.backbone.linear(torch.stack([items[k]["image"] for k in range(100)]))[:, 0]
    torch.testing.assert_close(scores(module, PosNegDataModule(predict_dataset=items)), expected)


class Molecules:
    """Neither a mapping nor a graph of PyG, though it has an attribute of this name."""

    def __init__(self, values):
        self.values, self.edge_index = values, torch.zeros(2, 0)

    def to(self, device):
        return self


def test_batches_of_any_class_reach_the_model():
    class Net(Plain):
        def forward(self, graph):
            return self.linear(graph.values)

    def collate(items):
        return Molecules(torch.stack([x for x, _ in items])), torch.tensor([y for _, y in items])

    fitted(ready(Single(lambda k, x, y: (x, y)), val_fraction=0.25, collate_fn=collate), Net())


@pytest.mark.parametrize(
    "item", [lambda k, x, y: (x if k % 4 else None, y), lambda k, x, y: {"x": x if k % 4 else None, "label": y}]
)
def test_a_collate_fn_may_not_drop_items(item):
    def collate(items):
        pairs = [i if isinstance(i, tuple) else (i["x"], i["label"]) for i in items]
        kept = [pair for pair in pairs if pair[0] is not None]
        x = torch.stack([x for x, _ in kept])
        return (x, torch.tensor([y for _, y in kept])) if isinstance(items[0], tuple) else {"x": x}

    with pytest.raises(DataError, match=r"`collate_fn` to .* 24 items"):
        next(iter(ready(Single(item), collate_fn=collate).train_dataloader()))


def test_items_that_are_none_are_refused():
    items, labels = [torch.zeros(3) if k % 4 else None for k in range(100)], [int(k % 5 == 0) for k in range(100)]
    with pytest.raises(DataError, match="`collate_fn` to return all 24 items"):
        next(iter(ready(items, targets=labels, collate_fn=lambda i: torch.stack([x for x in i if x is not None]))
                  .train_dataloader()))  # fmt: skip


def test_numbers_in_any_byte_order():
    x, y = TABLE[INPUTS].to_numpy(), TABLE.died.to_numpy()
    one, other = (next(iter(ready((x.astype(kind), y)).train_dataloader())).inputs for kind in ("f8", ">f8"))
    assert torch.equal(one, other)


def test_a_table_in_place_of_a_loader_is_one_line():
    for data in (TABLE[INPUTS], TABLE[INPUTS].to_numpy(), torch.zeros(5, 3)):
        with pytest.raises(DataError, match=r"is no data loader.*PosNegDataModule"):
            Trainer(**QUIET).predict(fitted(), data)


def test_the_fingerprint_tells_features_apart():
    cell = TABLE.copy()
    cell.loc[4, "age"] += 1
    one, same, other = (ready(data, targets="died").fingerprint for data in (TABLE, TABLE.copy(), cell))
    assert one == same != other


class Concatenating(nn.Module):
    """Goes through the values of a mapping in their order."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, batch):
        return self.linear(torch.stack([value.float() for value in batch.values()], 1))


def test_keys_in_another_order_are_the_same_inputs(tmp_path):
    def items(keys):
        return [{key: float(row[key]) for key in keys} | {"label": int(row.died)} for _, row in TABLE.iterrows()]

    trainer, module = Trainer(max_epochs=2, **QUIET), TPAUCModule(Concatenating())
    trainer.fit(module, ready(items(["crp", "age"])))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with torch.no_grad():
        expected = module.backbone({key: torch.tensor(TABLE[key]) for key in ("crp", "age")})[:, 0]
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=Concatenating())
    for model in (module, loaded):
        for data in (
            PosNegDataModule(predict_dataset=items(["age", "crp"])),
            DataLoader(items(["age", "crp"]), batch_size=100),
        ):
            scores = torch.cat([batch["score"] for batch in Trainer(**QUIET).predict(model, data)])
            torch.testing.assert_close(scores, expected)


def test_columns_without_names_are_taken_in_their_order_and_that_is_said():
    table = TABLE[["age", "crp", "pulse"]]
    for x, other in ((TABLE[INPUTS].to_numpy(), table), (TABLE[INPUTS], table.to_numpy())):
        trainer, module = Trainer(max_epochs=1, **QUIET), TPAUCModule(nn.Linear(3, 1))
        trainer.fit(module, ready((x, TABLE.died.to_numpy())))
        with pytest.warns(TPAUCWarning, match=r"`predict_dataset` is .* without names are taken in their order"):
            trainer.predict(module, PosNegDataModule(predict_dataset=other))


def test_a_table_of_whole_numbers_alone_is_one_of_numbers():
    flags = pd.DataFrame({name: TABLE[name] > 0 for name in INPUTS})
    trainer, module = Trainer(max_epochs=1, **QUIET), TPAUCModule(nn.Linear(3, 1))
    trainer.fit(module, ready((flags, TABLE.died)))
    for same in (flags, flags.astype(int), flags.astype(float)):
        scores = torch.cat([b["score"] for b in trainer.predict(module, PosNegDataModule(predict_dataset=same))])
        expected = module.backbone(torch.tensor(flags.to_numpy(), dtype=torch.float32))[:, 0].detach()
        torch.testing.assert_close(scores, expected)
