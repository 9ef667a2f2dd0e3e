"""Two-way partial AUC for PyTorch Lightning."""

from lightning_tpauc.version import __version__

__all__ = ("__version__",)
