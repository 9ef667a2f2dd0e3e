"""Networks for volumes: a small one, fast enough for CPUs, and the ResNet-18 of the paper's image experiments."""

from torch import Tensor, nn

from lightning_tpauc.extras import import_extra


class CNN3D(nn.Module):
    """Blocks of strided convolution, batch normalisation and ReLU, a mean over the volume and one score.

    Every block halves the volume, the first one included, so that hardly any work is done at full resolution: a pass
    over the 1,188 training volumes of AdrenalMNIST3D (28 x 28 x 28) takes one to two seconds on one CPU core. Volumes
    of any size fit; 28 voxels a side become 14, 7, 4 and 2.

    Args:
        in_channels: channels of a volume.
        channels: width of each block, at least one.
        dropout: probability of zeroing a pooled feature while training, in [0, 1).
        num_labels: number of labels, K; every one gets a score of its own.

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
        return self.head(self.dropout(self.blocks(inputs).mean(dim=(2, 3, 4)))).squeeze(1)


class ResNet3D(nn.Module):
    """ResNet-18 with 3 x 3 x 3 convolutions: torchvision's ``r3d_18`` from random weights, with a stem for volumes.

    The stem of ``r3d_18`` is made for video: three colours, and a 3 x 7 x 7 kernel that halves height and width but not
    the first axis, which is time there. A volume's axes are alike, and 28 voxels a side leave little to throw away, so
    the stem is a 3 x 3 x 3 convolution with the same stride along all axes, without pooling, as in ResNets for small
    images. With ``stem_stride=1`` the four stages work at 28, 14, 7 and 4 voxels a side; for 64 voxels a side
    ``stem_stride=2`` gives 32, 16, 8 and 4 at about the cost of 28 (ceil(64 / 2) = 32). 33.1 million parameters: meant
    for a GPU; :class:`~lightning_tpauc.models.CNN3D` is the one for CPUs.

    Args:
        in_channels: channels of a volume.
        stem_stride: stride of the first convolution along every axis.
        num_labels: number of labels, K; every one gets a score of its own.

    Raises:
        MissingExtraError: torchvision is not installed.

    Example:
        >>> import torch
        >>> model = ResNet3D(stem_stride=2).eval()
        >>> with torch.no_grad():
        ...     model(torch.zeros(2, 1, 16, 16, 16)).shape
        torch.Size([2])
    """

    def __init__(self, in_channels: int = 1, stem_stride: int = 1, num_labels: int = 1) -> None:
        super().__init__()
        video = import_extra("torchvision.models.video", "medical")
        self.network = video.r3d_18(weights=None, num_classes=num_labels)
        width = self.network.stem[0].out_channels
        convolution = nn.Conv3d(in_channels, width, kernel_size=3, stride=stem_stride, padding=1, bias=False)
        # As torchvision initialises every other convolution of the network.
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        self.network.stem = nn.Sequential(convolution, nn.BatchNorm3d(width), nn.ReLU(inplace=True))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map volumes ``(N, in_channels, D, H, W)`` to scores ``(N,)``, or ``(N, num_labels)`` with several."""
        return self.network(inputs).squeeze(1)
