"""Backbones of the experiments: modules that map a batch to raw scores ``(N,)``, larger means more positive.

With ``num_labels=K``, several tasks, scores are ``(N, K)``.

Importing this package needs no optional dependency; :class:`GIN` and :class:`ResNet3D` ask for theirs when they are
built.
"""

from lightning_tpauc.models.gin import GIN
from lightning_tpauc.models.tabular import MLP, Linear
from lightning_tpauc.models.volumes import CNN3D, ResNet3D

__all__ = ("CNN3D", "GIN", "MLP", "Linear", "ResNet3D")
