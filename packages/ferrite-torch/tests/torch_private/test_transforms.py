"""Transforms of ``torch.func`` that are entered where something fails."""

from __future__ import annotations

import pytest
import torch

from ferrite_torch.torch_private.transforms import leaving_transforms

STACK = torch._C._functorch
ENTER = {
    "vmap": lambda: STACK._vmap_increment_nesting(3, "error"),
    "grad": STACK._grad_increment_nesting,
    "jvp": STACK._jvp_increment_nesting,
    "functionalize": lambda: STACK._func_increment_nesting(True),
}


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name", ENTER)
def test_what_an_error_finds_entered_is_left(name: str, times: int) -> None:
    def fail() -> None:
        with leaving_transforms():
            for _ in range(times):
                ENTER[name]()
            raise ValueError(name)

    def fail_inside(x: torch.Tensor) -> torch.Tensor:
        depth = STACK.get_dynamic_layer_stack_depth()
        with pytest.raises(ValueError, match=name):
            fail()
        assert STACK.get_dynamic_layer_stack_depth() == depth == 1
        return x * 2

    torch.testing.assert_close(torch.vmap(fail_inside)(torch.ones(3)), torch.full((3,), 2.0))
    assert STACK.get_dynamic_layer_stack_depth() == 0


def test_nothing_is_left_where_nothing_fails() -> None:
    STACK._vmap_increment_nesting(3, "error")
    with leaving_transforms():
        STACK._grad_increment_nesting()
    assert STACK.get_dynamic_layer_stack_depth() == 2
    STACK._grad_decrement_nesting()
    STACK._vmap_decrement_nesting()
