"""Control flow of a compiled graph, as people read it."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_ir.language.graph import Call, ControlFlow, For, If, While


def call_text(definition: ControlFlow, launches: Mapping[str, int]) -> str:
    """Returns what a definition calls, and where it came from; ``launches`` are those of each graph, by name."""

    def title(name: str) -> str:
        count = launches.get(name, 0)
        return f"@{name} ({count} launch{'es' * (count != 1)})"

    location = ", ".join(dict.fromkeys(origin.description for origin in definition.origins if origin.description))
    match definition:
        case Call(callee=callee):
            return _placed(f"call {title(callee)}", location)
        case If(then=then, otherwise=otherwise):
            return _placed(f"if {title(then)} else {title(otherwise)}", location)
        case While(condition=condition, body=body):
            return _placed(f"while {title(condition)} do {title(body)}", location)
        case For(body=body, count=count):
            return _placed(f"for each of {count} rows {title(body)}", location)


def _placed(text: str, location: str) -> str:
    return f"{text}: {location}" if location else text
