"""Names and settings of several labels."""

import pytest

from lightning_tpauc.algorithms import STACO, Task
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.scoring.labels import Labels, by_position, check_label_settings


@pytest.mark.parametrize(("option", "value"), [("weight", -1), ("min_tpr", 80), ("max_fpr", 0)])
def test_an_option_out_of_range_names_its_label(option, value):
    with pytest.raises(ArgumentError, match=rf"`tasks` of 'skin': Expected `{option}` to be a number in .*{value}\.$"):
        check_label_settings({"liver": {"weight": 1}, "skin": {option: value}})


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("NR-AR", "SR_p53"), ("NR-AR", "SR_p53")),
        (("a/b", "c d", "e.f"), ("a_b", "c_d", "e_f")),
        (("Ödem", "0"), ("Ödem", "0")),
        (("a/b", "a_b"), ("a_b_0", "a_b_1")),
        (("", "dataloader_idx_0"), ("label_0", "label_dataloader_idx_0_1")),
        (("x", "x", "x_0"), ("x_0", "x_1", "x_0_2")),
    ],
)
def test_names_of_metrics_are_plain_and_differ(names, keys):
    found = Labels(names).keys
    assert len(set(found)) == len(names)
    if all(names) and not names[1].startswith("dataloader"):
        assert found == keys
    assert all(key.replace("-", "_").isidentifier() or key[0].isdigit() for key in found)


def test_settings_by_name_and_by_position():
    names = ("liver", "1", "skin")
    given = {"skin": {"weight": 2.0}, 0: {"max_fpr": 0.1}, "1": {"min_tpr": 0.9}}
    labels = Labels(names, by_position(given, names))
    assert labels.tasks([3, 4, 5]) == [Task(3, max_fpr=0.1), Task(4, min_tpr=0.9), Task(5, weight=2.0)]
    assert labels.rectangles(STACO(0.6, 0.4)) == [(0.6, 0.1), (0.9, 0.4), (0.6, 0.4)]


@pytest.mark.parametrize(("number", "names"), [(2019, ("2019", "2020")), (1, ("1", "2"))])
def test_a_number_that_is_a_position_and_another_labels_name(number, names):
    with pytest.raises(ArgumentError, match=f"options of {number}, .* Pass a name as text"):
        by_position({number: {"weight": 2.0}}, names)
    assert by_position({str(number): {"weight": 2.0}}, names) == {0: {"weight": 2.0}}
