"""Fixtures for the whole suite: every test starts from one state of the process and leaves none behind."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

SEED = 20250
ROOT = Path(__file__).resolve().parents[1]
#: Real data sets, next to the checkout; they are not part of the project.
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Sums over few numbers are not split; two workers on two cores do not fight."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    """No test depends on which ones ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def _restore_environment():
    """Lightning writes MASTER_ADDR, LOCAL_RANK, PL_GLOBAL_SEED and others; the next test must not read them."""
    before = dict(os.environ)
    yield
    # pytest keeps its own variable up to date while fixtures are torn down.
    after = {name for name in os.environ if name != "PYTEST_CURRENT_TEST"}
    for name in after - set(before):
        del os.environ[name]
    for name, value in before.items():
        if name != "PYTEST_CURRENT_TEST":
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _restore_torch():
    """Process-wide switches that ``Trainer(deterministic=...)`` and others leave on, and that hide faults elsewhere."""
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.backends.cudnn.benchmark = benchmark
    torch.set_num_threads(1)
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("The test left gradients switched off.")


@pytest.fixture(autouse=True)
def _no_process_group_left():
    """A process group that outlives its test makes the later ones wait for ranks that are gone."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("The test left a process group behind.")


@pytest.fixture
def tmp_cwd(tmp_path, monkeypatch):
    """A fresh folder as working directory, for whatever writes logs and checkpoints where it stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real data sets; tests that need them skip where it is missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data sets are missing: expected them in ../shared/data, next to the checkout")
    return SHARED_DATA
