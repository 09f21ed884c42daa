"""Control flow of a compiled graph, as people read it."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_ir.language.graph import Call, ControlFlow, For, If, While


def call_text(definition: ControlFlow, launches: Mapping[str, int]) -> str:
    """Returns what a definition calls, and where it came from; ``launches`` are those of each graph, by name."""

    def told(name: str) -> str:
        count = launches.get(name, 0)
        return f"@{name} ({count} launch{'es' * (count != 1)})"

    place = ", ".join(dict.fromkeys(origin.told for origin in definition.origins if origin.told))
    match definition:
        case Call(callee=callee):
            return _placed(f"call {told(callee)}", place)
        case If(then=then, otherwise=otherwise):
            return _placed(f"if {told(then)} else {told(otherwise)}", place)
        case While(condition=condition, body=body):
            return _placed(f"while {told(condition)} do {told(body)}", place)
        case For(body=body, count=count):
            return _placed(f"for each of {count} rows {told(body)}", place)


def _placed(text: str, place: str) -> str:
    return f"{text}: {place}" if place else text
