"""Several processes: gathered scores, and what DDP and FSDP2 need."""

from lightning_tpauc.distributed.collectives import *  # noqa: F403  # its `__all__` says what
from lightning_tpauc.distributed.collectives import __all__  # noqa: F401
