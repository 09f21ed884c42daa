"""Tile programs as the text of NumPy modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrite_ir.language.dtypes import BF16
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.printing.printed import print_with
from ferrite_triton.printing.statements import STEP, Hold, Types, print_function, print_statements
from ferrite_triton.tile.language import (
    Assert,
    Assume,
    AtomicUpdate,
    AwaitPredecessor,
    Barrier,
    Expression,
    HoldOnly,
    Prefetch,
    Store,
    Variable,
)
from ferrite_triton.tile.statements import For, TileProgram
from ferrite_triton.tile.types import ATOMICS, types_of

from .elements import stored_text, type_text
from .expressions import NAME, PRINTERS
from .library import library_text
from .spellings import UFUNCS


def print_numpy(program: TileProgram) -> str:
    """Returns a module with a function that runs all instances of a program, one after the other.

    The function has the program's name and parameters, then its block constants, then ``grid``, up to three numbers of
    instances, the first of which runs fastest. A parameter that is an address is a flat array, which starts there; one
    of bfloat16 holds bits, as uint16. A masked load without ``other`` gives NaN or -1 where its mask does not hold.

    Raises:
        UnsupportedDefinition: NumPy has no text for something in the program; the message says for what.
    """
    language = NumpyLanguage()
    names = [*(parameter.name for parameter in program.parameters), *program.constants, "grid"]
    body = [
        *(f"{STEP}{_parameter_text(parameter)}" for parameter in program.parameters),
        f"{STEP}grid = (*grid, 1, 1, 1)[:3]",
        f'{STEP}with np.errstate(all="ignore"):',
        f"{2 * STEP}for program in np.ndindex(grid[::-1]):",
        *print_statements(program, language, 3 * STEP),
    ]
    combines = ["\n".join([*print_function(function, language), ""]) for function in program.functions]
    library = library_text(language.used)
    kernel = "\n".join([f"def {program.name}({', '.join(names)}):", *body, ""])
    return "\n\n".join(["import numpy as np\n", *([library] if library else []), *combines, kernel])


def _parameter_text(parameter: Variable) -> str:
    name, type_ = parameter.name, parameter.type
    return f"{name} = {name}, np.int64(0)" if type_.is_pointer else f"{name} = {type_text(type_.dtype)}({name})"


class NumpyLanguage:
    """NumPy; ``used`` are the functions of the library that programs printed so far call."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def use(self, function: str, *operands: str) -> str:
        """Returns a call of a function of the library."""
        self.used.add(function)
        return f"{function}({', '.join(operands)})"

    def expression(self, root: Expression, types: Types, _: Hold) -> str:
        """Returns the text of a value."""
        return print_with(PRINTERS, root, types, self.use)

    def in_branch(self, number: str, branch: int) -> str:
        """Returns the number."""
        return number

    def rounds(self, loop: For, bounds: Sequence[str]) -> str:
        """Returns what a loop goes through: numbers of the counter's type."""
        return f"map({type_text(loop.counter.type.dtype)}, range({', '.join(bounds)}))"

    def effect(self, effect: Expression, types: Types, hold: Hold) -> str | None:
        """Returns the line that has an effect.

        Elements are worked on together and kernels one after the other, so that there is nothing to wait for.
        """
        match effect:
            case Store(pointer, value, mask):
                (type_,) = types_of(value, types)
                stored = stored_text(self.expression(value, types, hold), type_.dtype, self.use)
                return self.use("store", self.expression(pointer, types, hold), stored, *self._texts((mask,), types))
            case AtomicUpdate():
                return self._atomic(effect, types)
            case Assert(condition, message, mask):
                (held,) = self._texts((condition,), types)
                return self.use("check", held, repr(message), *self._texts((mask,), types))
            case Assume(condition):
                return self.use("check", *self._texts((condition,), types), repr("what the program assumes"))
            case AwaitPredecessor() | Barrier() | Prefetch() | HoldOnly():
                return None
        raise UnsupportedDefinition(f"the {NAME} target does nothing for its effect but store; found {effect}")

    def _texts(self, expressions: Sequence[Expression | None], types: Types) -> Iterator[str]:
        return (print_with(PRINTERS, each, types, self.use) for each in expressions if each is not None)

    def _atomic(self, update: AtomicUpdate, types: Types) -> str:
        (type_,) = types_of(update.value, types)
        if type_.dtype is BF16:
            raise UnsupportedDefinition(f"the {NAME} target has no atomic {update.mode} of {type_.dtype}; use f32")
        operands = self._texts((update.pointer, update.value, update.mask), types)
        return self.use("atomic", UFUNCS[ATOMICS[update.mode]], *operands)
