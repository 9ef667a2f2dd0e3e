"""The values that the paper prints, as (mean, standard deviation)."""

from __future__ import annotations

from lightning_tpauc.metrics.reporting import Rectangle

_DATA = ("higgs", "susy", "ijcnn1", "molmuv", "moltox21", "nodulemnist3d", "adrenalmnist3d")

#: Table "TPAUC on the test data": rectangle -> method -> one (mean, std) per data set.
TPAUC = {
    Rectangle(0.5, 0.5): {
        "CE": "0.041 0.001 0.300 0.010 0.230 0.017 0.715 0.166 0.267 0.042 0.657 0.037 0.507 0.094",
        "AUCM": "0.122 0.001 0.512 0.015 0.487 0.098 0.722 0.114 0.279 0.038 0.672 0.021 0.554 0.022",
        "SOTAs": "0.108 0.001 0.484 0.001 0.637 0.030 0.821 0.110 0.325 0.030 0.688 0.019 0.498 0.090",
        "PAUCI": "0.138 0.002 0.519 0.001 0.664 0.018 0.820 0.046 0.283 0.032 0.684 0.021 0.541 0.042",
        "SONX": "0.110 0.009 0.516 0.001 0.633 0.094 0.865 0.061 0.286 0.023 0.654 0.035 0.540 0.042",
        "STACO": "0.158 0.003 0.520 0.001 0.682 0.054 0.904 0.048 0.325 0.023 0.707 0.005 0.546 0.047",
    },
    Rectangle(0.25, 0.75): {
        "CE": "0.354 0.002 0.612 0.006 0.581 0.014 0.871 0.058 0.627 0.035 0.825 0.016 0.750 0.055",
        "AUCM": "0.435 0.004 0.726 0.002 0.728 0.061 0.851 0.066 0.630 0.027 0.831 0.016 0.772 0.014",
        "SOTAs": "0.441 0.002 0.746 0.009 0.813 0.016 0.821 0.070 0.614 0.056 0.838 0.012 0.763 0.054",
        "PAUCI": "0.4742 0.003 0.749 0.007 0.830 0.030 0.883 0.024 0.616 0.030 0.823 0.014 0.7642 0.015",
        "SONX": "0.447 0.009 0.748 0.000 0.810 0.049 0.927 0.029 0.626 0.028 0.832 0.013 0.772 0.021",
        "STACO": "0.484 0.004 0.752 0.000 0.839 0.024 0.945 0.024 0.638 0.041 0.856 0.003 0.780 0.013",
    },
}

_SURROGATES = ("squared_hinge", "square", "hinge")

#: Table "different nonsmooth losses": data -> method -> one (mean, std) per surrogate, for methods that have one. It
#: doesn't name its rectangle; the squared-hinge columns repeat the (0.75, 0.75) rows of the table above, with other
#: standard deviations.
SURROGATES = {
    "higgs": {
        "SOTAs": "0.441 0.003 0.467 0.004 0.415 0.004",
        "SONX": "0.447 0.003 0.472 0.003 0.420 0.004",
        "STACO": "0.484 0.004 0.511 0.003 0.458 0.004",
    },
    "susy": {
        "SOTAs": "0.746 0.003 0.773 0.003 0.719 0.002",
        "SONX": "0.748 0.003 0.773 0.003 0.723 0.003",
        "STACO": "0.752 0.000 0.779 0.003 0.725 0.004",
    },
    "ijcnn1": {
        "SOTAs": "0.813 0.002 0.840 0.004 0.787 0.004",
        "SONX": "0.810 0.002 0.785 0.003 0.836 0.004",
        "STACO": "0.839 0.024 0.866 0.004 0.812 0.004",
    },
}

#: Table "Training time per iteration (in seconds)"; its hardware is not stated.
SECONDS_PER_ITERATION = {
    "SOTA": {"molmuv": 14.80, "moltox21": 8.01, "nodulemnist3d": 2.02, "adrenalmnist3d": 2.23},
    "SONX": {"molmuv": 9.78, "moltox21": 4.54, "nodulemnist3d": 1.62, "adrenalmnist3d": 1.76},
    "PAUCI": {"molmuv": 12.54, "moltox21": 5.72, "nodulemnist3d": 2.51, "adrenalmnist3d": 2.74},
    "STACO": {"molmuv": 8.72, "moltox21": 3.96, "nodulemnist3d": 1.40, "adrenalmnist3d": 1.48},
}


def reported_tpauc(method: str | None, data: str, rectangle: Rectangle) -> tuple[float, float] | None:
    """The paper's test TPAUC as (mean, std); ``None`` where it has none.

    Example:
        >>> reported_tpauc("STACO", "ijcnn1", Rectangle(0.5, 0.5))
        (0.682, 0.054)
        >>> reported_tpauc("SOTA", "ijcnn1", Rectangle(0.5, 0.5)) is None
        True
    """
    name, _, surrogate = (method or "").partition(":")
    columns: tuple[str, ...] = _SURROGATES if surrogate else _DATA
    if surrogate:
        row = SURROGATES.get(data, {}).get(name) if rectangle == Rectangle(0.25, 0.75) else None
    else:
        row = TPAUC.get(rectangle, {}).get(name)
    column = surrogate or data
    if row is None or column not in columns:
        return None
    numbers = [float(number) for number in row.split()]
    place = 2 * columns.index(column)
    return numbers[place], numbers[place + 1]
