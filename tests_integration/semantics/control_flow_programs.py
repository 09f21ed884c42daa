"""Small programs with control flow, and how many calls of graphs each takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop


def choice(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(y.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (y,)).relu() + x


def nested_choice(x: Tensor) -> Tensor:
    def first(y: Tensor) -> Tensor:
        return torch.cond(y.max() > 1, lambda y: y.exp(), lambda y: y - 1, (y,))

    y = x * 2
    return torch.cond(y.sum() > 0, first, lambda y: y.cos(), (y,)).relu() + x


def choice_of_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.cond(x.sum() > 0, lambda x: (x + 1, x.sum(0)), lambda x: (x - 1, x[0] * 3), (x * 2,))
    return first * second, second + 1


def choice_of_layouts(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(y.sum() > 0, lambda y: y.t().sin(), lambda y: y.t().cos(), (y,)) @ x


def choice_of_what_was_given(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = torch.cond(y.sum() > 1e9, lambda y: y.sin(), lambda y: y.clone(), (y,))
    return z.relu() + x, y + 1


def choice_of_an_operand(x: Tensor) -> Tensor:
    y, z = x * 2, x.exp()
    w = torch.cond(y.sum() > 0, lambda y, z: (y.clone(), z + 1), lambda y, z: (z.clone(), y.clone()), (y, z))
    return w[0] * w[1] + y


def choice_by_size(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(x.shape[0] > 5, lambda y: y.sin(), lambda y: y.cos(), (y,)).relu() + x


def choice_with_integers(x: Tensor) -> Any:
    """Returns what branches return beside integers that both of them have."""
    return torch.cond(x.sum() > 0, lambda y: (2, y.sin(), 3, y[0] + 1), lambda y: (2, y.cos(), 3, y[1] * 2), (x * 2,))


def choice_of_numbers_held(x: Tensor) -> tuple[Tensor, Tensor]:
    """Chooses twice by functions that are alike but for the numbers that they hold as tensors, one of them written."""

    def held(first: float, second: float) -> Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda y: y * torch.tensor(first).add_(1) + torch.tensor([[3]]),
            lambda y: y - torch.tensor(second, dtype=torch.float64),
            (x * 2,),
        )

    return held(2.5, 1.5), held(0.5, -2.0)


def loop_in_a_loop(x: Tensor) -> Tensor:
    def turning(y: Tensor) -> Tensor:
        return while_loop(lambda j, z: j < 2, lambda j, z: (j + 1, z * 1.5), (torch.tensor(0), y))[1]

    return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, turning(y) + 1), (torch.tensor(0), x * 2))[1]


def choice_with_closure(x: Tensor) -> Tensor:
    weight = x.exp()
    return torch.cond(x.sum() > 0, lambda x: x * weight, lambda x: x - weight, (x + 1,)).relu()


def choice_of_products(x: Tensor) -> Tensor:
    y = x.softmax(-1)
    return torch.cond(y[0, 0] > 0.1, lambda a, b: (a @ b).relu(), lambda a, b: a @ b.cos(), (y, x.t())).sum(0)


def choice_of_views(x: Tensor) -> Tensor:
    y, z, w = x * 2, x + 1, x.exp()
    operands = (y[1:, ::2], z.t()[:4], w[0].expand(4, 8))
    return torch.cond(
        y.sum() > 0, lambda a, b, c: a.sum() + b.sum(1) + c[:, 0], lambda a, b, c: b[:, 0] * a.max() - c[:, 1], operands
    )


def choice_of_types(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.to(torch.bfloat16)
    found = torch.cond(x.sum() > 0, lambda y: (y * 2 + 1, y > 0), lambda y: (-y * 4, y.isnan()), (y,))
    return found[0].float(), found[1]


def two_choices(x: Tensor) -> Tensor:
    def halved(y: Tensor) -> Tensor:
        return y * 0.5

    def negated(y: Tensor) -> Tensor:
        return -y

    y = torch.cond(x.sum() > 0, halved, negated, (x,))
    return torch.cond(x.max() > 0.5, halved, negated, (y + 1,))


def choice_of_reductions(x: Tensor) -> Tensor:
    mean = torch.cond(x.sum() > 0, lambda x: x.mean(1), lambda x: x.var(1), (x + 1,))
    return (x - mean[:, None]).softmax(-1)


def loop(x: Tensor) -> tuple[Tensor, Tensor]:
    number, y = while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5 + i), (torch.tensor(0), x * 2))
    return y.relu() + x, number * 2


def loop_without_turns(x: Tensor) -> tuple[Tensor, Tensor]:
    number, y = while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x * 2))
    return y + 1, number


def counting_loop(x: Tensor) -> Tensor:
    number, y = while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5), (0, x * 2))
    return y.relu() + x * number


def counting_loop_over_rows(x: Tensor) -> Tensor:
    rows = x.shape[0]
    number, total = while_loop(
        lambda i, total: i < rows, lambda i, total: (i + 1, total * 0.5 + x.sum(0) * i), (0, x[0] * 2)
    )
    return total.relu() + number


def loop_with_two_ends(x: Tensor) -> tuple[Tensor, Tensor]:
    def lasts(i: int, j: int, y: Tensor) -> Any:
        return i + j < 12

    first, _, y = while_loop(lasts, lambda i, j, y: (i + 1, j + 2, y + i - j), (0, 3, x * 2))
    return y, x * first


def loop_until_small(x: Tensor) -> Tensor:
    (y,) = while_loop(lambda y: y.abs().max() > 0.5, lambda y: (y * 0.5,), (x * 2,))
    return y + 1


def loop_of_products(x: Tensor) -> Tensor:
    weight = (x.t() @ x).tanh() * 0.1
    _, y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, (y @ weight).relu() + y), (torch.tensor(0), x))
    return y


def loop_that_exchanges(x: Tensor) -> tuple[Tensor, Tensor]:
    _, a, b = while_loop(
        lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b + 0, a + b), (torch.tensor(0), x * 0 + 1, x * 2)
    )
    return a, b


def choice_in_a_loop(x: Tensor) -> Tensor:
    def step(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.cond(i > 1, lambda y: y * 0.5, lambda y: y + 1, (y,))

    _, y = while_loop(lambda i, y: i < 4, step, (torch.tensor(0), x * 2))
    return y


def loop_in_a_choice(x: Tensor) -> Tensor:
    def turning(y: Tensor) -> Tensor:
        _, z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 2), (torch.zeros((), dtype=torch.long), y))
        return z

    return torch.cond(x.sum() > 0, turning, lambda y: y.cos(), (x + 1,)) + x


@torch.compiler.nested_compile_region
def block(x: Tensor) -> Tensor:
    return (x.sin() * 2).softmax(-1)


def repeated_region(x: Tensor) -> Tensor:
    return block(block(x) + 1).relu() * x


@torch.compiler.nested_compile_region
def product_block(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).relu() + x


def repeated_products(x: Tensor) -> Tensor:
    weight = x.t() @ x
    y = x
    for _ in range(3):
        y = product_block(y * 0.1, weight)
    return y


def region_in_a_choice(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: block(y) + 1, lambda y: block(y) * 2, (x * 2,))


@dataclass(frozen=True, slots=True)
class Program:
    """A program.

    Attributes:
        run: the program.
        calls: steps that call graphs, those of graphs included, in inference.
        graphs: distinct graphs that are called, in inference.
        has_gradient: whether torch differentiates it.
        sizes: the rows that the dynamic form is called with.
    """

    run: Callable[[Tensor], Any]
    calls: int = 1
    graphs: int = 2
    has_gradient: bool = True
    sizes: tuple[int, ...] = (6, 4, 7)

    @property
    def name(self) -> str:
        return self.run.__name__


PROGRAMS = (
    Program(choice),
    Program(nested_choice, 2, 4),
    Program(choice_of_pairs),
    Program(choice_of_layouts),
    Program(choice_of_what_was_given),
    Program(choice_of_an_operand),
    Program(choice_by_size, 0, 0),
    Program(choice_with_integers),
    Program(choice_of_numbers_held, 2, 4),
    Program(choice_with_closure),
    Program(choice_of_products),
    Program(choice_of_views),
    Program(choice_of_types, has_gradient=False),
    Program(two_choices, 2, 2),
    Program(choice_of_reductions),
    Program(loop),
    Program(loop_without_turns),
    Program(counting_loop, has_gradient=False),
    Program(counting_loop_over_rows, has_gradient=False),
    Program(loop_with_two_ends, has_gradient=False),
    Program(loop_until_small, has_gradient=False),
    Program(loop_of_products, has_gradient=False),
    Program(loop_that_exchanges, has_gradient=False),
    Program(choice_in_a_loop, 2, 4, has_gradient=False),
    Program(loop_in_a_choice, 2, 4, has_gradient=False),
    Program(loop_in_a_loop, 2, 3, has_gradient=False),
    Program(repeated_region, 2, 1),
    Program(repeated_products, 3, 1),
    Program(region_in_a_choice, 3, 3),
)
