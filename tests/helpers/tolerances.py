"""The one home of the suite's tolerances.

``exact`` results are compared with ``torch.equal``; everything else names a row of the table.
"""

import torch

TOLERANCES: dict[str, dict[str, float]] = {
    # one formula evaluated in two orders in double precision
    "float64": {"rtol": 1e-12, "atol": 1e-12},
    # hundreds of steps in double precision against a loop in another order; each divides by the loss of its batch
    "trajectory64": {"rtol": 1e-8, "atol": 1e-8},
    # one formula in single precision
    "float32": {"rtol": 1e-5, "atol": 1e-6},
    # tens of steps in single precision, and one process against several
    "trajectory32": {"rtol": 1e-5, "atol": 1e-5},
    # half-precision forward passes against float32
    "half": {"rtol": 2e-2, "atol": 2e-2},
}


def assert_close(actual, expected, kind: str = "float64") -> None:
    """Compare with the named row of the table; dtypes may differ, shapes may not."""
    actual = torch.as_tensor(actual)
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    row = TOLERANCES[kind]
    torch.testing.assert_close(actual, expected, rtol=row["rtol"], atol=row["atol"], equal_nan=True)
