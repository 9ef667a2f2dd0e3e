"""Strategies other than forks of the test's own process: spawned, started by scripts, sharded, on several nodes."""

import importlib.util
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch.multiprocessing.spawn import ProcessRaisedException

from lightning_tpauc.errors import UnsupportedError
from lightning_tpauc.lightning_fixes.unsupported import refuse_unsupported
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.launching import (
    assert_same_run,
    finish,
    finish_well,
    free_port,
    start,
    write_config,
)
from tests.helpers.paths import ROOT
from tests.helpers.problems import bare_trainer
from tests.helpers.ranks import fit as fit_ranks
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*use of fork.*:DeprecationWarning",
        "ignore:.*Checkpoint directory.*",
        "ignore:PAUCI is made for scores in",
    ),
]

SCRIPTS = ROOT / "tests" / "helpers" / "scripts"


def test_ddp_from_the_command_line(tmp_path, one_process):
    command = ["lightning-tpauc", "fit", "--config", write_config(tmp_path, 2)]
    command += ["--trainer.strategy", "ddp", "--trainer.devices", "2"]
    finish_well(start(command, tmp_path))
    assert_same_run(tmp_path, one_process)


def test_two_nodes_by_torchrun(tmp_path, one_process):
    command = ["torchrun", "--nnodes", "2", "--nproc_per_node", "1"]
    command += ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    fit = ["-m", "lightning_tpauc", "fit", "--config", write_config(tmp_path, 2)]
    fit += ["--trainer.strategy", "ddp", "--trainer.devices", "1", "--trainer.num_nodes", "2"]
    nodes = [start([*command, "--node_rank", str(rank), *fit], tmp_path) for rank in range(2)]
    for node in nodes:
        finish_well(node)
    assert_same_run(tmp_path, one_process)


def test_options_of_ddp(tmp_path):
    strategy = DDPStrategy(start_method="fork", find_unused_parameters=True, gradient_as_bucket_view=True)
    (single,) = fit_ranks(tmp_path, 1, gamma=4.0, max_steps=30)
    for other in fit_ranks(tmp_path, 2, gamma=4.0, max_steps=30, strategy=strategy):
        assert_close(other["losses"], single["losses"], "trajectory64")
        assert_close(other["weights"]["backbone.weight"], single["weights"]["backbone.weight"], "trajectory64")


# ---------------------------------------------------------------- sharded parameters


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What two processes with sharded parameters wrote, and the script that they ran."""
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip(f"FSDP2 of torch {torch.__version__} does not run on a CPU: its streams record no events")
    folder = tmp_path_factory.mktemp("sharded")
    finish_well(start(["python", str(SCRIPTS / "model_parallel.py"), str(folder)], folder))
    return folder, [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", ["staco2", "sonx", "pauci"])
def test_sharded_parameters_reproduce_one_process(tmp_path, sharded, case):
    """Anchor, average, clipping, proximal term, previous weights; validation amid a stage, on the average."""
    script = load_script("model_parallel")
    expected = flat(script.fit(tmp_path, script.CASES[case]()))
    assert len([name for name in expected if name.startswith("/evaluated")]) == 4 * 8 + 16
    for rank in sharded[1]:
        actual = flat(rank[case])
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(actual[name], value, "trajectory32")


def test_sharded_parameters_reproduce_ddp_with_batch_normalisation(sharded):
    """Stages, average and running statistics, whose means over ranks and over a stage are validated."""
    for rank in sharded[1]:
        actual, expected = flat(rank["unbroken True"]), flat(rank["ddp"])
        assert actual.keys() == expected.keys()
        statistics = [value for name, value in expected.items() if name.startswith("/buffers") and value.numel() == 8]
        assert len(statistics) == 2
        assert not torch.equal(statistics[1], torch.ones(8))
        for name, value in expected.items():
            assert_close(actual[name], value, "trajectory32")


@pytest.mark.parametrize("in_one_file", [True, False], ids=["one file", "a file per process"])
def test_sharded_run_resumes_to_the_last_bit(sharded, in_one_file):
    for rank in sharded[1]:
        unbroken, resumed = flat(rank[f"unbroken {in_one_file}"]), flat(rank[f"resumed {in_one_file}"])
        missed = len(rank[f"unbroken {in_one_file}"]["losses"]) - len(rank[f"resumed {in_one_file}"]["losses"])
        assert missed == 10
        for name in ("losses", "areas"):
            part = resumed.pop(f"/{name}")
            assert torch.equal(part, unbroken[f"/{name}"][-len(part) :])
        assert any(name.startswith("/buffers") for name in resumed)
        for name, value in resumed.items():
            assert name.startswith("/evaluated") or torch.equal(value, unbroken[name]), name


def test_one_file_of_sharded_weights_serves_one_process(tmp_path, sharded):
    """It publishes the average, and a single process resumes from it."""
    path = sharded[0] / "staco2" / "step=10.ckpt"
    saved = torch.load(path, weights_only=True)
    assert torch.equal(saved["state_dict"]["backbone.0.weight"], saved[KEY]["average"]["mean"][0])
    assert not torch.equal(saved["state_dict"]["backbone.0.weight"], saved[KEY]["iterate"][0])
    script = load_script("model_parallel")
    unbroken = sharded[1][0]["staco2"]
    resumed = script.fit(sharded[0] / "staco2", script.staco2(), resume=True)
    assert_close(resumed["losses"], unbroken["losses"][10:], "trajectory32")
    for ours, theirs in zip(resumed["weights"], unbroken["weights"], strict=True):
        assert_close(ours, theirs, "trajectory32")


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("how", "words"),
    [("exception", "ValueError: rank 1 is broken on purpose"), ("nan", r"NonFiniteError: Not finite .* the weights")],
)
def test_all_forks_stop_when_one_fails(how, words):
    began = time.monotonic()
    with pytest.raises(ProcessRaisedException, match=words):
        load_script("fail").fit("ddp_fork", rank=1, how=how)
    assert time.monotonic() - began < 60


def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Rank 1 does not notice that rank 0 has failed, as in a collective of NCCL."""
    process = start(["python", str(SCRIPTS / "fail.py"), "--rank", "0", "--others", "stuck"], tmp_path)
    output = finish(process, timeout=120)
    assert process.returncode not in (0, None)
    assert "ValueError: rank 0 is broken on purpose" in output
    stuck, deadline = int((tmp_path / "stuck").read_text()), time.monotonic() + 15
    while Path(f"/proc/{stuck}").exists():
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.1)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (FSDPStrategy(), "FSDPStrategy can't work here: it hides or flattens .* Use 'ddp', or ModelParallelStrategy"),
        (ModelParallelStrategy(1, 2), r"tensor parallelism can't work here: ranks of one"),
    ],
)
def test_strategies_that_hide_or_share_the_parameters_are_refused(strategy, words):
    trainer = bare_trainer()
    trainer._accelerator_connector.strategy = strategy
    with pytest.raises(UnsupportedError, match=words):
        refuse_unsupported(trainer)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ({"gradient_clip_val": 1.0}, "Pass `gradient_clip_val` to TPAUCModule"),
        ({"accumulate_grad_batches": 2}, "Raise `num_pos` and `num_neg`.*`chunk_size`"),
    ],
)
def test_flags_of_automatic_optimization_are_refused_with_the_remedy(flag, words):
    with pytest.raises(UnsupportedError, match=words):
        refuse_unsupported(bare_trainer(**flag))
