"""Names of values: none twice, identifiers of programs, and none that is a dim's."""

import pytest

from ferrite_torch.lowering.fresh_names import FreshNames


@pytest.mark.parametrize(
    ("stem", "names"),
    [
        ("add", ["add", "add_1", "add_2"]),
        ("add_1", ["add_1", "add_1b1"]),
        ("__x.y", ["x_y", "x_y_1"]),
        ("d0", ["v_d0", "v_d0b1"]),
        ("1st", ["v_1st", "v_1st_1"]),
        ("_", ["value", "value_1"]),
    ],
)
def test_names_like_a_stem(stem: str, names: list[str]) -> None:
    taken = FreshNames()
    assert [taken.fresh(stem) for _ in names] == names


def test_reserved_names_are_given_to_nobody() -> None:
    taken = FreshNames()
    taken.reserve(["add", "add_1"])
    assert taken.fresh("add") == "add_2"
