"""Models of feature vectors: the linear model of the paper's convex experiments, and a fully connected network."""

from torch import Tensor, nn


class Linear(nn.Module):
    """Linear scores h_w(x) = w^T x (+ b).

    Weights start at zero: with a convex surrogate the objective is convex in w, so runs with different seeds differ by
    their batches alone. The bias shifts all scores alike, so pairwise losses leave it as it is; cross-entropy needs it.

    Args:
        num_features: number of features of an example.
        bias: whether to add b.
        num_labels: number of labels, K; every one gets a score of its own.

    Example:
        >>> import torch
        >>> Linear(num_features=3)(torch.ones(2, 3))
        tensor([0., 0.], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, num_features: int, bias: bool = True, num_labels: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_labels, bias=bias)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map features ``(N, num_features)`` to scores ``(N,)``, or ``(N, num_labels)`` with several."""
        return self.linear(inputs).squeeze(1)


class MLP(nn.Module):
    """Fully connected layers with ReLU between them, and one score at the end.

    Args:
        num_features: number of features of an example.
        hidden_features: width of each hidden layer; ``()`` gives a linear model with random start.
        dropout: probability of zeroing a hidden unit while training, in [0, 1).
        batch_norm: whether to normalise every hidden layer before its ReLU. Batches of the TPAUC methods have far more
            positives than the data set, so its running statistics do not fit the test set.
        num_labels: number of labels, K; every one gets a score of its own.

    Example:
        >>> import torch
        >>> MLP(num_features=22, hidden_features=(64, 32))(torch.zeros(5, 22)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        num_features: int,
        hidden_features: tuple[int, ...] = (64,),
        dropout: float = 0.0,
        batch_norm: bool = False,
        num_labels: int = 1,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = num_features
        for hidden in hidden_features:
            layers.append(nn.Linear(width, hidden))
            if batch_norm:
                layers.append(nn.BatchNorm1d(hidden))
            layers.append(nn.ReLU())
            if dropout > 0.0:
                layers.append(nn.Dropout(dropout))
            width = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_labels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map features ``(N, num_features)`` to scores ``(N,)``, or ``(N, num_labels)`` with several."""
        return self.layers(inputs).squeeze(1)
