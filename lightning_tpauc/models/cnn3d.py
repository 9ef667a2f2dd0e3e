"""A small convolutional network for volumes, fast enough for CPUs."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_tpauc.models.checks import check_dropout, check_size, check_sizes

__all__ = ("CNN3D",)


class CNN3D(nn.Module):
    """Blocks of strided convolution, batch normalisation and ReLU, a mean over the volume and one score.

    Every block halves the volume, the first one included, so that hardly any work is done at full resolution: a pass
    over the 1,188 training volumes of AdrenalMNIST3D (28 x 28 x 28) takes one to two seconds on one CPU core. Volumes
    of any size fit; 28 voxels a side become 14, 7, 4 and 2.

    Args:
        in_channels: channels of a volume.
        channels: width of each block, at least one.
        dropout: probability of zeroing a pooled feature while training, in [0, 1).
        num_labels: number of tasks, K; every one gets a score of its own.

    Raises:
        ArgumentError: a size is not an int of at least 1, or ``dropout`` lies outside [0, 1).

    Example:
        >>> import torch
        >>> CNN3D()(torch.zeros(4, 1, 28, 28, 28)).shape
        torch.Size([4])
    """

    def __init__(
        self,
        in_channels: int = 1,
        channels: tuple[int, ...] = (8, 16, 32, 64),
        dropout: float = 0.0,
        num_labels: int = 1,
    ) -> None:
        super().__init__()
        check_size("num_labels", num_labels)
        check_size("in_channels", in_channels)
        check_sizes("channels", channels, at_least=1)
        check_dropout(dropout)
        blocks: list[nn.Module] = []
        width = in_channels
        for out in channels:
            # The normalisation has a shift of its own, so the convolution needs no bias.
            blocks += [nn.Conv3d(width, out, kernel_size=3, stride=2, padding=1, bias=False), nn.BatchNorm3d(out)]
            blocks.append(nn.ReLU())
            width = out
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_labels)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map volumes ``(N, in_channels, D, H, W)`` to scores ``(N,)``, or ``(N, num_labels)`` with several."""
        features: Tensor = self.blocks(inputs).mean(dim=(2, 3, 4))
        scores: Tensor = self.head(self.dropout(features))
        return scores.squeeze(1)
