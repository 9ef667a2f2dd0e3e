import pytest
import torch

from lightning_tpauc.functional import PowerForm
from lightning_tpauc.functional.pairwise import _scan, one_sided_grad_sums, one_sided_sums, prefix_sums
from tests.helpers.tolerances import assert_close


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("num_pos", "num_neg"), [(1, 1), (6, 11), (11, 6)])
def test_sums_match_loops(degree, num_pos, num_neg):
    rng = torch.Generator().manual_seed(0)
    pos, edge, y = torch.randn(3, num_pos, generator=rng, dtype=torch.float64)
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    total, number, pos_grad_sum = ([0.0] * num_pos for _ in range(3))
    neg_grad_sum = [0.0] * num_neg
    for i in range(num_pos):
        for j in range(num_neg):
            if neg[j] > edge[i]:
                u = 0.3 + neg[j].item() - pos[i].item()
                total[i] += u**degree
                number[i] += 1
                pos_grad_sum[i] += degree * u ** (degree - 1)
                neg_grad_sum[j] += y[i].item() * degree * u ** (degree - 1)
    down = (-neg).sort().values
    power = PowerForm(0.3, degree)
    actual = (*one_sided_sums(pos, down, edge, power), one_sided_grad_sums(pos, neg, edge, y, power))
    for values, expected in zip(actual, (total, number, pos_grad_sum, neg_grad_sum), strict=True):
        assert_close(values, expected)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 9, 1000])
def test_both_ways_of_summing_agree(n):
    rows = torch.randn(2, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    expected = [[sum(row[:k]) for k in range(n + 1)] for row in rows.tolist()]
    assert_close(prefix_sums(rows), expected)
    assert_close(_scan(rows), torch.tensor(expected, dtype=torch.float64)[:, 1:])
