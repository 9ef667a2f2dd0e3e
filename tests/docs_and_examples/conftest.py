"""What pages and examples register is theirs alone."""

import pytest

from lightning_tpauc.functional import surrogates


@pytest.fixture(autouse=True)
def own_surrogates(monkeypatch):
    """A block of a page registers a surrogate in the process of the tests, where another may want its name."""
    monkeypatch.setattr(surrogates, "_FACTORIES", dict(surrogates._FACTORIES))
