"""Conversions that a program asks for, which round, whatever a compiler leaves out between operations."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzz_pool import FLOATS, HALVES, INTEGERS, Line, Pool, is_float, is_integer, operation
from fuzz_views import may_be_stored

SHORT = {torch.float16: "half", torch.bfloat16: "bfloat16", torch.float32: "float", torch.float64: "double"}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def chain(pool: Pool, x: Tensor, dtypes: list[torch.dtype]) -> tuple[str, str]:
    """Returns conversions one after another, and the same of numbers in float64; of its own type, nothing happens."""
    text, names, current = "{0}", [], x.dtype
    for dtype in dtypes:
        if dtype is current:
            continue
        short = pool.rng.random() < 0.4 and dtype in SHORT
        text += f".{SHORT[dtype]}()" if short else f".to({dtype})"
        names.append(name_of(dtype))
        current = dtype
    return text, f"rounded({{0}}, {', '.join(map(repr, names))})" if names else "{0}"


@operation(6)
def cast(pool: Pool) -> Line | None:
    """Returns a conversion, or a few of them."""
    name = pool.name(lambda x: x.dtype is not torch.bool)
    if name is None:
        return None
    x = pool.tensors[name]
    dtypes = pool.rng.choices((*FLOATS, *HALVES), k=pool.rng.choice((1, 1, 1, 2, 3)))
    text, wide = chain(pool, x, dtypes)
    return Line(text, (name,), wide=wide)


@operation(3)
def integer_cast(pool: Pool) -> Line | None:
    """Returns a conversion between integers, which wraps, or one of floats that are in the range of all."""
    name = pool.name(lambda x: is_integer(x) or is_float(x), exact=True)
    if name is None:
        return None
    inside = "" if is_integer(pool.tensors[name]) else ".clamp(0, 100)"
    return Line(f"{{0}}{inside}.to({pool.rng.choice(INTEGERS)})", (name,))


@operation(5)
def split_number(pool: Pool) -> Line | None:
    """Returns what a conversion loses, the two parts of a number, or an error that is fed back."""
    name = pool.name(lambda x: x.dtype in (torch.float32, torch.float64))
    if name is None:
        return None
    x, half = pool.tensors[name], pool.rng.choice(HALVES)
    text, wide = chain(pool, x, [half, x.dtype])
    forms = ["{0} - @", "({0} - @) * 256", "@ + ({0} - @) * 2", "({0} - @).abs().amax()"]
    if x.ndim:
        forms += ["({0} - @).sum(-1)", "torch.stack([@, {0} - @], -1)"]
    if not pool.is_inexact(name):
        forms += ["({0} - @) == 0", "{0} == @", "({0} > @).to(torch.int32)"]
    form = pool.rng.choice(forms)
    return Line(form.replace("@", text), (name,), wide=form.replace("@", wide))


@operation(2)
def overflow(pool: Pool) -> Line | None:
    """Returns what becomes of numbers that are too large for float16."""
    name = pool.name(lambda x: x.dtype in (torch.float32, torch.float64), exact=True)
    if name is None:
        return None
    forms = (
        "({0} * 65536).half().isinf()",
        "({0} * 65536).half().clamp(-4, 4)",
        "({0} * 65536).half().isfinite().sum()",
    )
    form = pool.rng.choice(forms)
    return Line(form, (name,), wide=form.replace("({0} * 65536).half()", "rounded({0} * 65536, 'float16')"))


@operation(2)
def counted(pool: Pool) -> Line | None:
    """Returns whether integers are the same after a conversion to a type that cannot hold all of them."""
    name = pool.name(is_integer)
    if name is None:
        return None
    forms = ("{0}.to(torch.float32).to(torch.float64) - {0}.to(torch.float64) == 0", "({0} % 2049).half().long()")
    forms += ("({0} % 1000).bfloat16().to(torch.int32)", "({0} % 70000).to(torch.float32)")
    form = pool.rng.choice(forms)
    wides = {
        forms[0]: "rounded({0}, 'float32') - rounded({0}, 'float64') == 0",
        forms[1]: "rounded({0} % 2049, 'float16').long()",
        forms[2]: "rounded({0} % 1000, 'bfloat16').to(torch.int32)",
        forms[3]: "rounded({0} % 70000, 'float32')",
    }
    return Line(form, (name,), wide=wides[form])


@operation(2)
def like_another(pool: Pool) -> Line | None:
    """Returns a tensor as another one's type."""
    name, other = pool.name(is_float), pool.name(is_float)
    if name is None or other is None:
        return None
    dtype = pool.tensors[other].dtype
    wide = "{0}" if pool.tensors[name].dtype is dtype else f"rounded({{0}}, '{name_of(dtype)}')"
    text = pool.rng.choice(("{0}.type_as({1})", "{0}.to({1})", "{0}.to({1}.dtype)"))
    return Line(text, (name, other), wide=wide)


@operation(4)
def stored_reader(pool: Pool) -> Line | None:
    """Returns a line that jumps where a half that the program returns changes: it must read what is stored."""
    name = pool.name(lambda x: x.dtype in HALVES and not pool.is_trained)
    if name is None or not may_be_stored(pool, name):
        return None
    forms = ("{0} > 0.3", "{0}.float() * 4096 % 2", "({0}.float() * 1024).long()", "{0} == {0}.float()", "{0}.isinf()")
    forms += (
        "{0}.float() - 0.25",
        "{0} * 2",
        "{0}.sort(-1).values" if pool.tensors[name].ndim else "{0} < 0",
    )
    pool.kept.add(name)
    form = pool.rng.choice(forms)
    return Line(form, (name,), stores=name, wide=form.replace(".float()", ".double()"))
