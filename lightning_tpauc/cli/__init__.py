"""The command ``lightning-tpauc``."""

from lightning_tpauc.cli.command import TPAUCCLI, main

__all__ = ("TPAUCCLI", "main")
