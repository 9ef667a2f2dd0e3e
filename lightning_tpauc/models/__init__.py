"""Backbones of the experiments: modules that map a batch to raw scores ``(N,)``, larger means more positive.

With ``num_labels=K``, several tasks, scores are ``(N, K)``.

Importing this package needs no optional dependency; :class:`GIN` and :class:`ResNet3D` ask for theirs when they are
built.
"""

from lightning_tpauc.models.cnn3d import CNN3D
from lightning_tpauc.models.gin import GIN
from lightning_tpauc.models.linear import Linear
from lightning_tpauc.models.mlp import MLP
from lightning_tpauc.models.resnet3d import ResNet3D

__all__ = ("CNN3D", "GIN", "MLP", "Linear", "ResNet3D")
