"""Workers of loaders that a test leaves are stopped when it ends."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

KINDS: list[type] = [_MultiProcessingDataLoaderIter]
if find_spec("torchdata") is not None:
    stateful = import_module("torchdata.stateful_dataloader.stateful_dataloader")
    KINDS.append(stateful._StatefulMultiProcessingDataLoaderIter)


@pytest.fixture(autouse=True)
def stopped_workers(monkeypatch):
    """Left to the garbage collector, torch waits five seconds for each of them, in some later test."""
    iterators = []

    def recorded(self, *args, init, **kwargs):
        iterators.append(self)
        init(self, *args, **kwargs)

    for kind in KINDS:
        init = partial(recorded, init=kind.__init__)
        monkeypatch.setattr(kind, "__init__", lambda self, *args, init=init, **kwargs: init(self, *args, **kwargs))
    yield
    for iterator in iterators:
        iterator._shutdown_workers()
