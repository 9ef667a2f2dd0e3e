"""Trainers inside of something else, which says itself what there is to say."""

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from lightning.pytorch.utilities.seed import isolate_rng

_TURN = threading.RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No messages of Trainers; random numbers, filters and environment are left as they were."""
    log = logging.getLogger("lightning.pytorch")
    # seed_everything and Trainers write to the environment; as all of it belongs to all threads, they take turns
    with _TURN, isolate_rng(), warnings.catch_warnings(), mock.patch.dict(os.environ):
        warnings.simplefilter("ignore")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        except SystemExit as error:  # a Trainer that is interrupted ends the program
            raise error.__context__ if isinstance(error.__context__, KeyboardInterrupt) else error from None
        finally:
            log.setLevel(level)
