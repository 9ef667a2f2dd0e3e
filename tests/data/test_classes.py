"""One column of K classes is K labels: those of scikit-learn's `label_binarize`, whatever holds the column."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import label_binarize
from torch.utils.data import TensorDataset

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.data import OneVsRest
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.models import Linear
from tests.helpers.problems import bare_trainer

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = np.arange(60) % 3
TEXT = np.array(["cat", "dog", "fish"])[Y]
FORMS = {
    "array": ((X, Y), 3),
    "list of text": ((X, TEXT.tolist()), ["cat", "dog", "fish"]),
    "text": ((X.numpy(), TEXT), ("cat", "dog", "fish")),
    "tensors": (TensorDataset(X, torch.from_numpy(Y)), Y.max() + 1),
    "items": ([(x, int(label)) for x, label in zip(X, Y, strict=True)], range(3)),
    "mappings": ([{"x": x, "label": label} for x, label in zip(X, TEXT.tolist(), strict=True)], ["cat", "dog", "fish"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_those_of_scikit_learn(form):
    dataset, classes = FORMS[form]
    data = PosNegDataModule(dataset, val_dataset=dataset, targets=OneVsRest(classes), batch_size=60)
    data.setup("fit")
    assert data.label_names == tuple(map(str, OneVsRest(classes).classes))
    (batch,) = data.val_dataloader()
    np.testing.assert_array_equal(batch.target, label_binarize(Y, classes=range(3)))


def test_a_column_of_a_table():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X.numpy(), columns=list("abc"))
    data = PosNegDataModule((table, pandas.Series(TEXT, dtype="category")), targets=OneVsRest(["cat", "dog", "fish"]))
    data.setup("fit")
    assert data.num_positives == (20, 20, 20)
    assert data.columns == ("a", "b", "c")


@pytest.mark.slow
def test_accuracy_is_that_of_the_score_furthest_above_its_threshold():
    x, y = load_iris(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    data = PosNegDataModule((x, y), targets=OneVsRest(3), val_fraction=0.4)
    module = TPAUCModule(Linear(4, num_labels=3))
    trainer = bare_trainer(max_epochs=30)
    trainer.fit(module, data)
    found = trainer.validate(module, data, verbose=False)[0]["val/accuracy"]
    (predicted,), (batch,) = trainer.predict(module, data), data.val_dataloader()
    ahead = predicted["score"] - torch.tensor(list(module.threshold.values()))
    assert found == pytest.approx(np.mean((ahead.argmax(1) == batch.target.argmax(1)).numpy()), abs=1e-6)
    assert found > 0.8


@pytest.mark.parametrize("classes", [1, [], ["cat", "cat"]])
def test_classes_are_two_or_more_different_ones(classes):
    with pytest.raises(ArgumentError, match="classes"):
        OneVsRest(classes)


def test_another_class_is_refused():
    with pytest.raises(DataError, match="0, 1, but found 2"):
        PosNegDataModule((X, Y), targets=OneVsRest(2)).setup("fit")
