"""Fixtures for the whole suite: every test starts from one state of the process and leaves none behind.

They lie above both ``tests`` and the package, since the examples in docstrings are tests as well.
"""

import doctest
import logging
import os
import random
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lightning_tpauc.errors import MissingExtraError
from tests.helpers.paths import SHARED_DATA

SEED = 20250


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """An example in a docstring can't say that it needs an extra; it is skipped where that is not installed.

    One that is installed and can't be imported is still a failure. Tests say for themselves what they need.
    """
    try:
        return (yield)
    except doctest.UnexpectedException as failure:
        error = failure.exc_info[1]
        missing = getattr(error.__cause__, "name", None) if isinstance(error, MissingExtraError) else None
        if missing is None or find_spec(missing.split(".")[0]) is not None:
            raise
        pytest.skip(str(error))


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
def _restore_logging():
    """Scripts and notebooks silence Lightning in the process of the tests, where a later one reads its messages."""
    names = (
        "lightning",
        "lightning.fabric",
        "lightning.pytorch",
        "lightning.pytorch.utilities.rank_zero",
        "lightning_tpauc",
    )
    loggers = [logging.getLogger(name) for name in names]
    before = [(log.level, log.disabled, log.propagate, list(log.filters)) for log in loggers]
    yield
    for log, (level, disabled, propagate, filters) in zip(loggers, before, strict=True):
        log.setLevel(level)
        log.disabled, log.propagate, log.filters = disabled, propagate, filters


@pytest.fixture(autouse=True)
def _no_process_group_left():
    """A process group that outlives its test makes the later ones wait for ranks that are gone."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("The test left a process group behind.")


@pytest.fixture(autouse=True)
def _examples_write_elsewhere(request):
    """An example in a docstring that trains would leave its logs in the checkout."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("tmp_cwd")


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
