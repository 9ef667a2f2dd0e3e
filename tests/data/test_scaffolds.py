import numpy as np
import pytest

from lightning_tpauc.data.molecules import scaffold_split


def naive_scaffold_split(scaffolds, percent):
    """The rule with integers: groups from the largest on, in doubt the one that starts later in the file."""
    groups = []
    for scaffold in set(scaffolds):
        members = [i for i, other in enumerate(scaffolds) if other == scaffold]
        groups.append((-len(members), -members[0], members))
    train, val, test = [], [], []
    for _, _, members in sorted(groups):
        if 100 * (len(train) + len(members)) <= percent[0] * len(scaffolds):
            train += members
        elif 100 * (len(train) + len(val) + len(members)) <= (percent[0] + percent[1]) * len(scaffolds):
            val += members
        else:
            test += members
    return train, val, test


@pytest.mark.parametrize("percent", [(80, 10, 10), (60, 20, 20), (34, 33, 33), (100, 0, 0), (0, 50, 50)])
@pytest.mark.parametrize("size", [1, 10, 97, 200])
def test_scaffold_split_follows_the_rule(percent, size):
    drawn = np.random.default_rng(size)
    scaffolds = [f"scaffold {min(drawn.integers(1, 12), drawn.integers(1, 12))}" for _ in range(size)]
    fractions = tuple(share / 100 for share in percent)
    assert scaffold_split(scaffolds, fractions) == naive_scaffold_split(scaffolds, percent)


def test_a_fraction_is_met_exactly_in_spite_of_rounding():
    # 0.7 + 0.1 is 0.7999...: ten groups of one must still be cut 7, 1, 2.
    assert [len(part) for part in scaffold_split(range(10), (0.7, 0.1, 0.2))] == [7, 1, 2]
