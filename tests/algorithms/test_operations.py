"""How many tensor operations a step of the algorithm is made of: a GPU launches a kernel for each."""

import pytest
import torch

from lightning_tpauc.algorithms import STACO
from tests.helpers.operations import CountOperations


@pytest.mark.parametrize("duals", ["per_positive", "tracked"])
@pytest.mark.parametrize("sizes", [(32, 32), (64, 192)])
def test_a_default_call_and_its_backward_pass_take_sixty(duals, sizes):
    generator = torch.Generator().manual_seed(0)
    algorithm, index = STACO(duals=duals), torch.arange(sizes[0])
    algorithm.setup(sizes[0])
    for _ in range(3):
        pos, neg = (torch.randn(n, generator=generator, requires_grad=True) for n in sizes)
        with CountOperations() as operations:
            algorithm(pos, neg, index=index).backward()
    assert 40 < len(operations.names) <= 60, operations.names
    assert not [name for name in operations.names if "_local_scalar_dense" in name]
