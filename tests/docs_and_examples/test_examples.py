"""Each example runs as its first lines say, on the small data that it makes, and what it prints and writes is true."""

import re
import runpy
import sys

import pytest
import torch

from lightning_tpauc.functional import two_way_partial_auroc
from tests.helpers.launching import finish_well, start
from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "examples"
SHORT = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "reproduce.py")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("tmp_cwd"),
]


def run(name, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def printed_areas(text):
    """(TPAUC, AUROC) of the last line."""
    return tuple(map(float, re.search(r"TPAUC ([\d.]+), AUROC ([\d.]+)", text).groups()))


@pytest.mark.parametrize("name", SHORT)
def test_the_list_names_it(name):
    assert f"({name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def check_predictions(pandas, printed):
    """The file holds the test rows by their ids, and says what was printed about them."""
    rows, predictions = pandas.read_csv("breast_cancer.csv"), pandas.read_csv("predictions.csv")
    assert list(predictions) == ["example_id", "id", "score", "probability", "decision"]
    predictions = predictions.rename(columns={"id": "patient"})
    assert predictions["patient"].is_unique
    joined = predictions.merge(rows, on="patient", validate="one_to_one")
    assert len(joined) == len(predictions) == 171
    scores, labels = torch.tensor(joined["score"].to_numpy()), torch.tensor(joined["malignant"].to_numpy())
    area = float(two_way_partial_auroc(scores, labels, 0.8, 0.2))
    assert float(re.search(r"test: TPAUC ([\d.]+)", printed)[1]) == pytest.approx(area, abs=6e-4)
    threshold = float(re.search(r"score >= (-?[\d.]+)", printed)[1])
    clear = (joined["score"] - threshold).abs() > 1e-3  # it is printed with three digits
    assert ((joined["score"] > threshold) == joined["decision"].astype(bool))[clear].all()
    sensitivity = joined[joined["malignant"] == 1]["decision"].mean()
    specificity = 1 - joined[joined["malignant"] == 0]["decision"].mean()
    precision = joined[joined["decision"] == 1]["malignant"].mean()
    assert f"sensitivity {sensitivity:.3f}" in printed
    assert f"specificity {specificity:.3f}" in printed
    assert f"precision {precision:.3f}" in printed
    order = joined.sort_values("score")["probability"]
    assert order.is_monotonic_increasing
    assert 0 <= order.min() < 0.5 < order.max() <= 1


@pytest.mark.slow
def test_table(capsys, monkeypatch):
    pandas = pytest.importorskip("pandas")
    run("table.py", monkeypatch=monkeypatch)
    check_predictions(pandas, capsys.readouterr().out)


@pytest.mark.slow
def test_labels(capsys, monkeypatch):
    pandas = pytest.importorskip("pandas")
    example = run("labels.py", monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    table, predictions = example["make_table"]()[2300:], pandas.read_csv("predictions.csv")
    areas = []
    for name, rectangle in (("liver", (0.8, 0.3)), ("heart", (0.5, 0.5)), ("skin", (0.5, 0.5))):
        known = table[name].notna().to_numpy()
        scores, labels = predictions[f"score_{name}"][known], table[name][known].astype(int)
        area = two_way_partial_auroc(torch.tensor(scores.to_numpy()), torch.tensor(labels.to_numpy()), *rectangle)
        areas.append(float(area))
        found = predictions[f"decision_{name}"][known][labels.to_numpy() == 1].mean()
        assert f"{name}: TPAUC {areas[-1]:.3f}, sensitivity {found:.3f}," in printed
    assert f"mean TPAUC {sum(areas) / 3:.3f};" in printed
    assert min(areas[1:]) > 0.3


@pytest.mark.slow
def test_images(capsys, monkeypatch, tmp_cwd):
    pytest.importorskip("torchvision")
    example = run("images.py", "--epochs", "1", monkeypatch=monkeypatch)
    tpauc, auroc = printed_areas(capsys.readouterr().out)
    assert 0 <= tpauc <= auroc <= 1
    assert len(list((tmp_cwd / "digits").glob("*/*.png"))) == 800
    torch.save(example["shufflenet_v2_x0_5"]().state_dict(), "weights.pt")
    net, again = example["backbone"]("weights.pt"), example["backbone"]("weights.pt")
    assert torch.equal(net.conv1[0].weight, again.conv1[0].weight), "both start from the file"


@pytest.mark.slow
def test_text(capsys, monkeypatch):
    pytest.importorskip("transformers")
    run("text.py", monkeypatch=monkeypatch)
    assert printed_areas(capsys.readouterr().out)[1] > 0.9


@pytest.mark.slow
def test_molecules(capsys, monkeypatch, tmp_cwd):
    for name in ("torch_geometric", "ogb", "rdkit"):
        pytest.importorskip(name)
    run("molecules.py", monkeypatch=monkeypatch)
    assert printed_areas(capsys.readouterr().out)[1] > 0.9
    header, *rows = (tmp_cwd / "molecules_scores.csv").read_text().splitlines()
    assert header == "example_id,score,decision"
    assert [int(row.split(",")[0]) for row in rows] == list(range(len(rows)))


@pytest.mark.slow
def test_finetune(capsys, monkeypatch):
    run("finetune.py", monkeypatch=monkeypatch)
    printed = re.search(r"TPAUC ([\d.]+) after cross-entropy, ([\d.]+) fine-tuned", capsys.readouterr().out)
    before, after = map(float, printed.groups())
    assert after >= before, "the start is a candidate for the weights that are left"


def test_custom_algorithm(capsys, monkeypatch):
    example = run("custom_algorithm.py", monkeypatch=monkeypatch)
    before, after = map(float, re.search(r"([\d.]+) before, ([\d.]+) after training", capsys.readouterr().out).groups())
    assert after > before + 0.1
    algorithm = example["QuantileHinge"](max_fpr=0.3, rate=0.2)
    algorithm.setup(4, dtype=torch.float64)
    neg = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    for _ in range(200):
        algorithm(torch.zeros(1), neg, index=torch.tensor([0]))
    assert float(algorithm.threshold) == pytest.approx(0.7)
    assert set(algorithm.state_dict()) == {"num_positives", "threshold"}


def test_mixin(capsys, monkeypatch):
    run("mixin.py", monkeypatch=monkeypatch)
    found = dict(re.findall(r"'([\w/]+)': '([\d.]+)'", capsys.readouterr().out))
    assert float(found["val/tpauc"]) > 0.2
    assert float(found["val/average_precision"]) > 0.5


@pytest.mark.slow
def test_tune(capsys, monkeypatch):
    optuna = pytest.importorskip("optuna")
    study = runpy.run_path(str(EXAMPLES / "tune.py"))["main"](trials=5)
    states = [trial.state for trial in study.trials]
    assert set(states) <= {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    pruned = states.count(optuna.trial.TrialState.PRUNED)
    assert f"val/tpauc {study.best_value:.3f}" in (printed := capsys.readouterr().out)
    assert f"{pruned} of 5 trials" in printed


def test_plain_loop(capsys, monkeypatch):
    run("plain_loop.py", monkeypatch=monkeypatch)
    before, after = map(float, re.findall(r"TPAUC ([\d.]+)", capsys.readouterr().out))
    assert after > before + 0.2
    saved = torch.load("plain_loop.pt", weights_only=True)
    assert float(saved["loss"]["border_rate"]) < 1.0, "the loss has taken steps, and its state is saved"


@pytest.mark.slow
def test_hf_trainer_resumes_the_loss_as_well(monkeypatch):
    for module in ("transformers", "accelerate"):
        pytest.importorskip(module)
    monkeypatch.syspath_prepend(EXAMPLES)
    main = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))["main"]
    options = {"save_steps": 7, "disable_tqdm": True}
    straight, resumed = main(epochs=2, folder="straight", **options), main(epochs=2, folder="straight", **options)
    straight.train()
    before = {name: value.clone() for name, value in straight.model.state_dict().items()}
    resumed.train(resume_from_checkpoint="straight/checkpoint-7")
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.slow
def test_hf_accelerate(capsys, monkeypatch, tmp_cwd):
    pytest.importorskip("accelerate")
    run("hf_accelerate.py", monkeypatch=monkeypatch)
    assert float(re.search(r"TPAUC ([\d.]+) with 1 processes", capsys.readouterr().out)[1]) > 0.3
    assert (tmp_cwd / "hf_accelerate" / "custom_checkpoint_0.pkl").exists()


@pytest.mark.slow
def test_monai_volumes(capsys):
    pytest.importorskip("monai")
    runpy.run_path(str(EXAMPLES / "monai_volumes.py"))["main"]()
    assert float(re.search(r"TPAUC ([\d.]+)", capsys.readouterr().out)[1]) > 0.3


@pytest.mark.slow
@pytest.mark.ddp
def test_two_processes(tmp_cwd):
    output = finish_well(start(["python", str(EXAMPLES / "two_processes.py")], tmp_cwd))
    (line,) = [line for line in output.splitlines() if line.startswith("TPAUC")]
    assert re.fullmatch(r"TPAUC 0\.\d+ with 2 processes", line)
