"""`TPAUCClassifier` keeps scikit-learn's rules and works in its tools; the scorer gives the metric's value."""

import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from scipy.special import expit
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, make_scorer, recall_score
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import check_dataframe_column_names_consistency, parametrize_with_checks

from lightning_tpauc import TPAUCClassifier, tpauc_scorer
from lightning_tpauc.algorithms import CrossEntropy
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.lightning_fixes.undisturbed import undisturbed
from lightning_tpauc.models import Linear
from tests.reference.tpauc import naive_tpauc

quick = partial(TPAUCClassifier, 0.5, 0.5, max_steps=50, random_state=0)


@pytest.fixture(scope="module")
def rows():
    """400 rows, two of ten columns informative, a fifth positive."""
    return make_classification(
        400, 10, n_informative=2, n_redundant=0, weights=[0.8], class_sep=1.5, shuffle=False, random_state=0
    )


@pytest.fixture(scope="module")
def fitted(rows):
    return quick().fit(*rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([TPAUCClassifier(max_steps=40)])
def test_rules_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore")
def test_columns_are_known_by_name():
    check_dataframe_column_names_consistency("TPAUCClassifier", TPAUCClassifier(max_steps=5))


# ---------------------------------------------------------------- training


def test_weights_matter_and_the_order_of_rows_is_nothing(rows, fitted):
    X, y = rows
    generator = np.random.default_rng(0)
    order, weights = generator.permutation(len(y)), generator.random(len(y))
    one, other = quick().fit(X, y, weights), quick().fit(X[order], y[order], weights[order])
    np.testing.assert_array_equal(one.decision_function(X), other.decision_function(X))
    assert not np.array_equal(one.decision_function(X), fitted.decision_function(X))


@pytest.mark.slow
def test_rows_of_a_group_all_train_or_all_validate():
    """Labels that say nothing but which group it is can be remembered, and not be foretold."""
    generator = np.random.default_rng(0)
    group = np.repeat(np.arange(50), 8)
    X = generator.normal(size=(50, 5))[group] + 0.05 * generator.normal(size=(400, 5))
    y = generator.permutation(np.arange(50) % 2)[group]
    known, foretold = (TPAUCClassifier(0, 1, max_steps=200, random_state=0).fit(X, y, groups=g) for g in (None, group))
    assert known.best_validation_score_ > 0.95
    assert foretold.best_validation_score_ < 0.8


def test_what_is_missing_counts_as_the_mean(rows):
    X, y = rows[0].copy(), rows[1]
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    X[:, 9] = np.nan  # a column without a number
    found = quick().fit(X, y)
    filled = np.where(np.isnan(X), np.nan_to_num(found.scaler_.mean_), X)
    assert tpauc_scorer(0.5, 0.5)(found, X, y) > 0.2
    np.testing.assert_allclose(found.decision_function(X), found.decision_function(filled), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backbone", [Linear, torch.nn.Sequential(torch.nn.Linear(10, 2)), None])
def test_a_fit_is_quiet_repeatable_and_leaves_what_it_was_given(backbone, rows, tmp_cwd, capfd):
    model = quick(backbone=backbone, algorithm=CrossEntropy, optimizer=partial(torch.optim.Adam, lr=0.01))
    given = pickle.dumps(backbone)
    state = torch.get_rng_state()
    model.fit(*rows)
    assert torch.equal(torch.get_rng_state(), state)
    again = pickle.loads(pickle.dumps(clone(model).fit(*rows)))  # noqa: S301
    for method in ("decision_function", "predict_proba", "predict"):
        np.testing.assert_array_equal(getattr(model, method)(rows[0]), getattr(again, method)(rows[0]))
    assert pickle.dumps(backbone) == given
    assert (list(tmp_cwd.iterdir()), *capfd.readouterr()) == ([], "", "")


def test_fits_can_be_interrupted_and_in_threads_take_turns(rows):
    with pytest.raises(KeyboardInterrupt):
        quick(trainer={"callbacks": LambdaCallback(on_train_start=Mock(side_effect=KeyboardInterrupt))}).fit(*rows)
    with ThreadPoolExecutor(1) as pool:
        with undisturbed():
            waiting = pool.submit(quick().fit, *rows)
            assert not wait([waiting], timeout=2).done
        waiting.result()


def test_what_a_user_may_not_have_meant_is_said():
    X = np.random.default_rng(0).normal(size=(300, 2))
    rare = X[:, 0] > 1
    with pytest.warns(TPAUCWarning, match="of the rows are 'legit', .* the other one, pass `y == 'fraud'`"):
        quick().fit(X, np.where(rare, "fraud", "legit"))
    with pytest.warns(TPAUCWarning, match="`backbone` ends in a sigmoid"):
        quick(backbone=torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Sigmoid())).fit(X, rare)
    with pytest.warns(TPAUCWarning, match="All rows train and validate"):
        quick().fit(X[:12], np.arange(12) == 3)  # too few


@pytest.mark.parametrize(
    ("arguments", "fitted_with", "error", "message"),
    [
        ({"min_tpr": 1.0}, {}, ArgumentError, "min_tpr"),
        ({"max_steps": 0}, {}, ArgumentError, "max_steps"),
        ({"validation_fraction": 1.5}, {}, ArgumentError, "validation_fraction"),
        ({"calibration_fraction": -1}, {}, ArgumentError, "calibration_fraction"),
        ({"calibration_fraction": 0.8}, {}, ArgumentError, "'validation_fraction': 0.2, 'calibration_fraction': 0.8"),
        ({"criterion": "best"}, {}, ArgumentError, "criterion"),
        ({"algorithm": CrossEntropy()}, {}, ArgumentError, "`algorithm` to make one"),
        ({}, {"sample_weight": np.linspace(-1, 1, 30)}, DataError, "sample_weight"),
        ({}, {"sample_weight": np.linspace(0, 1, 30)}, ArgumentError, "one label or two classes"),
        ({}, {"sample_weight": np.arange(30) % 3 == 0}, DataError, r"two classes .* got one class, \[0\]"),
        ({}, {"sample_weight": np.zeros(30)}, DataError, "whose weight is not zero, but got none"),
        ({}, {"groups": np.full(30, np.nan)}, ArgumentError, "`groups` has no value for row 0"),
    ],
)
def test_what_is_wrong_is_said(arguments, fitted_with, error, message):
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(error, match=message):
        TPAUCClassifier(**{"max_steps": 2, **arguments}).fit(X, np.arange(30) % (2 if arguments else 3), **fitted_with)


# ---------------------------------------------------------------- predicting


def test_predictions_follow_from_the_scores_of_the_backbone(rows, fitted):
    X, y = rows
    scores = fitted.model_(torch.from_numpy((X - fitted.scaler_.mean_) / fitted.scaler_.scale_)).detach().numpy()
    (_, slope, shift), probabilities = fitted.calibration_[0], fitted.predict_proba(X)
    np.testing.assert_allclose(fitted.decision_function(X), scores - fitted.threshold_, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), scores >= fitted.threshold_)
    np.testing.assert_array_equal(fitted.predict(X), probabilities[:, 1] > 0.5)  # as the rectangle holds it
    np.testing.assert_allclose(probabilities[:, 1], expit(float(slope) * scores + float(shift)), rtol=0, atol=1e-12)
    assert abs(probabilities[:, 1].mean() - y.mean()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("criterion", "rectangle", "rate", "expected"),
    [
        ("max_sensitivity", (0.1, 0.1), 0, 0.1),
        ("max_specificity", (0.9, 0.9), 1, 0.9),
        (None, (0.95, 0.9), 1, 0.95),  # probability 1/2 misses it
    ],
)
def test_the_threshold_keeps_its_bound_on_other_rows(criterion, rectangle, rate, expected):
    X, y = make_classification(20_000, 5, flip_y=0.3, weights=[0.7], random_state=0)
    options = {"criterion": criterion, "max_steps": 100, "calibration_fraction": 0.4, "random_state": 0}
    found = TPAUCClassifier(*rectangle, **options).fit(X[::2], y[::2])
    shares = confusion_matrix(y[1::2], found.predict(X[1::2]), normalize="true")[:, 1]  # FPR and TPR
    assert abs(shares[rate] - expected) < 0.03


def test_scores_are_finite_where_labels_say_nothing():
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(60, 3)), generator.random(60) < 0.4
    assert np.isfinite(TPAUCClassifier(0, 1, max_steps=10, random_state=0).fit(X, y).decision_function(X)).all()


@pytest.mark.slow
def test_several_classes_have_an_output_each():
    X, y = load_iris(return_X_y=True, as_frame=False)
    names = np.array(["setosa", "versicolor", "virginica"])
    found = quick(backbone=Linear, max_steps=200).fit(X, names[y])
    decision, probability = found.decision_function(X), found.predict_proba(X)
    odds = expit(decision)
    np.testing.assert_allclose(probability, odds / odds.sum(axis=1, keepdims=True), atol=1e-12)
    np.testing.assert_array_equal(found.predict(X), names[probability.argmax(axis=1)])
    assert (found.predict(X) == names[y]).mean() > 0.9
    each = [naive_tpauc(decision[y == k, k], decision[y != k, k], 0.5, 0.5) for k in range(3)]
    assert tpauc_scorer(0.5, 0.5)(found, X, names[y]) == pytest.approx(np.mean(each), abs=1e-12)
    with pytest.raises(DataError, match="Stratify"):
        tpauc_scorer(0.5, 0.5)(found, X[:60], names[y[:60]])


# ---------------------------------------------------------------- in scikit-learn's tools


@pytest.mark.parametrize("model", [LogisticRegression(), RandomForestClassifier(10, random_state=0)])
def test_scorer_is_the_metric_of_any_classifier(model, rows):
    X, y = rows
    model.fit(X, np.where(y, "sick", "healthy"))
    assert list(model.classes_) == ["healthy", "sick"]
    scores = model.predict_proba(X)[:, 1] if isinstance(model, RandomForestClassifier) else model.decision_function(X)
    expected = naive_tpauc(scores[y == 1], scores[y == 0], 0.5, 0.4)
    assert tpauc_scorer(0.5, 0.4)(model, X, np.where(y, "sick", "healthy")) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(DataError, match=r"of 2 classes, but all are of \['sick'\]. Stratify"):
        tpauc_scorer(0.5, 0.4)(model, X[y == 1], ["sick"] * y.sum())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TPAUC is 0")  # of the one that hardly moves
def test_columns_of_all_kinds_in_a_pipeline_and_a_search():
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame({"site": generator.choice(["a", "b", "c"], 300), "age": generator.normal(size=300)})
    frame.loc[::7, "age"] = np.nan
    y = np.where((frame["site"] == "b") & (frame["age"].fillna(0) > -1), "sick", "healthy")
    columns = make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough")
    search = GridSearchCV(
        make_pipeline(columns, quick()),
        {"tpaucclassifier__optimizer": [partial(torch.optim.SGD, lr=1e-9), None]},
        scoring=tpauc_scorer(0.5, 0.5),
        cv=2,
        error_score="raise",
    ).fit(frame, y)
    assert search.best_params_["tpaucclassifier__optimizer"] is None
    assert search.score(frame, y) > 0.9
    assert list(search.classes_) == ["healthy", "sick"]


@pytest.mark.slow
def test_out_of_fold_scores_are_those_of_models_that_have_not_seen_the_rows(rows):
    X, y = rows
    folds = [(np.arange(200, 400), np.arange(200)), (np.arange(200), np.arange(200, 400))]
    order = np.random.default_rng(0).permutation(400)
    X, y = X[order], y[order]
    scores = cross_val_predict(quick(), X, y, cv=folds, method="decision_function")
    for train, held_out in folds:
        np.testing.assert_array_equal(scores[held_out], quick().fit(X[train], y[train]).decision_function(X[held_out]))
    each = [naive_tpauc(scores[own][y[own] == 1], scores[own][y[own] == 0], 0.5, 0.5) for _, own in folds]
    np.testing.assert_allclose(cross_val_score(quick(), X, y, cv=folds, scoring=tpauc_scorer(0.5, 0.5)), each)


@pytest.mark.slow
def test_wrappers_choose_probabilities_and_thresholds_by_folds(rows):
    X, y = rows
    calibrated = CalibratedClassifierCV(quick(), cv=3).fit(X, y, sample_weight=np.ones(400))
    assert abs(calibrated.predict_proba(X)[:, 1].mean() - y.mean()) < 0.03
    lenient = TunedThresholdClassifierCV(quick(), scoring=make_scorer(recall_score), cv=2).fit(X, y)
    assert lenient.predict(X).mean() > 0.9  # recall alone calls all positive


def test_permutation_importance_finds_the_columns_that_matter(rows, fitted):
    found = permutation_importance(fitted, *rows, scoring=tpauc_scorer(0.5, 0.5), n_repeats=3, random_state=0)
    assert {*np.argsort(found.importances_mean)[-2:].tolist()} == {0, 1}
