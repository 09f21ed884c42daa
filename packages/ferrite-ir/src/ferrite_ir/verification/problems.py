"""The numbered rules of a well-formed program, and problems with the place where they show."""

from __future__ import annotations

from dataclasses import dataclass

RULES: dict[str, str] = {
    "V01": "every name is defined once, and is an identifier",
    "V02": "a value is defined before it is used",
    "V03": "the type of a body is the element type of its result",
    "V04": "a definition has as many results as it gives",
    "V05": "the shape of a result is the shape of its domain",
    "V06": "a combine gets operands that it takes",
    "V07": "a load has one index for each dim of its value, and its element type",
    "V08": "an index lies in bounds, or its load is guarded by masked",
    "V09": "a body depends on dims of its domain only",
    "V10": "the dims of a domain have different names, which are no symbolic sizes, and there are dims to reduce over",
    "V11": "a value is not used once an update has replaced it",
    "V12": "an update stores elements of its target's type, at one index for each dim; its result has that type too",
    "V13": "an update reads its own target only where it stores",
    "V14": "a view lies within the storage of its value",
    "V15": "mutations name the final versions of inputs, and all inputs that change",
    "V16": "an extern call aliases and mutates operands of its own",
    "V17": "a scan or sort runs along a dim of its domain; a sort gives values and positions",
    "V18": "a contraction multiplies numbers of one type, carried in f32 or wider; it may be stored as a 16-bit float",
    "V19": "a condition is one bool",
    "V20": "a call fits the graph that it names",
    "V21": "graphs of a module do not call each other in a circle",
    "V22": "the elements of a result lie at different places in memory, unless an extern call made it",
    "V23": "an indirect index is an integer",
    "V24": "a symbolic size that a definition binds is not used before it",
    "V25": "attention multiplies numbers of one type, weighs in f32, and has a factor for each weight",
    "V26": "groups of a contraction's points are a dim of their own, and end at integers",
}
"""What each rule asks for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule.

    Attributes:
        rule: its number, a key of `RULES`.
        message: what is wrong, with names and numbers, and what to do.
        graph: name of the graph.
        position: of the definition in it; None for the header (inputs, outputs, mutations).
        spot: a piece of the text of the definition (or header) at which the problem shows, "" for its start.
    """

    rule: str
    message: str
    graph: str
    position: int | None
    spot: str = ""

    def __str__(self) -> str:
        location = "its header" if self.position is None else f"definition {self.position}"
        return f"{self.rule} in @{self.graph}, {location}: {self.message}"
