"""The unit of the loss as a running mean over batches, by loops."""

from tests.reference.staco import tail_mean


class Unit:
    """L <- L + 0.05 (L_B - L); ``bounded`` ones are at least L_B and the loss of a constant model, ``floor``.

    What divides the weights' loss is at least L_B.
    """

    def __init__(self, theta1, bounded=False, floor=0.0):
        self.theta1, self.bounded, self.floor = theta1, bounded, floor
        self.mean = None

    def step(self, rows):
        """The unit of a step whose losses are ``rows``, a list for each positive."""
        batch = sum(tail_mean(row, self.theta1) for row in rows) / len(rows)
        self.mean = batch if self.mean is None else self.mean + 0.05 * (batch - self.mean)
        self.of_loss = max(self.mean, batch)
        return max(self.of_loss, self.floor) if self.bounded else self.mean


class One:
    """Absolute steps."""

    of_loss = 1.0

    def step(self, rows):
        return 1.0
