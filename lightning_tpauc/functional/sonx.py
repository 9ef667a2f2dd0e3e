r"""SONX, the lines that it does not share with STACO.

With :math:`\psi_i(w, s_i) = s_i + E_N (\ell_{ij} - s_i)_+ / \theta_1`, which is
:func:`~lightning_tpauc.functional.staco.per_positive_risk`, and :math:`f(u, s') = s' + (u - s')_+ / \theta_0`, the
method descends on :math:`E_P f(u_i, s')` where :math:`u_i` tracks :math:`\psi_i`.
"""

from __future__ import annotations

from torch import Tensor


def tracking_step(estimate: Tensor, risk: Tensor, previous_risk: Tensor | None, tau: float, gamma: float) -> Tensor:
    r"""The moving average with error correction.

    .. math:: u_i \leftarrow (1 - \tau) u_i + \tau \psi_i(w_t, s_{i,t})
        + \gamma \bigl( \psi_i(w_t, s_{i,t}) - \psi_i(w_{t-1}, s_{i,t-1}) \bigr)

    Args:
        estimate: float tensor ``(S,)``, :math:`u_i`.
        risk: float tensor ``(S,)``, :math:`\psi_i(w_t, s_{i,t})`.
        previous_risk: float tensor ``(S,)``, :math:`\psi_i(w_{t-1}, s_{i,t-1})` on the same batch; ``None`` drops the
            correction.
        tau: rate of the average, in (0, 1].
        gamma: weight of the correction, at least 0.

    Example:
        >>> import torch
        >>> tracking_step(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0]), tau=0.5, gamma=0.25)
        tensor([1.2500])
    """
    mean = (1.0 - tau) * estimate + tau * risk
    return mean if previous_risk is None else mean + gamma * (risk - previous_risk)


def outer_selection(estimate: Tensor, global_threshold: Tensor) -> Tensor:
    r"""Which positives count: :math:`1[u_i > s'] = \theta_0 \, \partial f(u_i, s') / \partial u_i`.

    Example:
        >>> import torch
        >>> outer_selection(torch.tensor([0.1, 0.3]), torch.tensor(0.2))
        tensor([0., 1.])
    """
    return (estimate > global_threshold).to(estimate.dtype)


def value_before(values: Tensor, replaced: Tensor, changed_at: Tensor, step: Tensor) -> Tensor:
    r"""What each entry was one step ago, :math:`s_{i,t-1}`, from the last change of each.

    Args:
        values: float tensor ``(S,)``, current values.
        replaced: float tensor ``(S,)``, values that the last change replaced.
        changed_at: int tensor ``(S,)``, step of the last change, below ``step``.
        step: int tensor ``()``, number t of the current step.

    Example:
        >>> import torch
        >>> changed_at = torch.tensor([6, 2])
        >>> value_before(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]), changed_at, torch.tensor(7))
        tensor([0.5000, 1.0000])
    """
    return replaced.where(changed_at == step - 1, values)
