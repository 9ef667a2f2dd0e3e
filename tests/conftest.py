"""Fixtures of the tests that several folders share."""

import pytest


@pytest.fixture(scope="session")
def one_process(tmp_path_factory):
    """Checkpoint of the run in one process that those in several are compared with."""
    from tests.helpers.launching import run_alone

    return run_alone(tmp_path_factory.mktemp("one"))
