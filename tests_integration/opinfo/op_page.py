"""Writes docs/operators.md: what each operator of torch's database does under the compiler, as it was measured.

    python tests_integration/opinfo/op_page.py
    python tests_integration/opinfo/op_page.py --table table.jsonl --where "torch 2.11.0, an H200, 2026-11-20"
    python tests_integration/opinfo/op_page.py --table gradients.jsonl --where "..." --part

The page is a function of operators.jsonl beside this file. The second form first makes that from the table that run.py
leaves: a line that says what it was measured with and how many aten ops are native, then a line per operator. With
``--part`` the ways of a table (gradients alone, say) take the place of those ways, and the others stay.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]

from op_expectations import explanation  # noqa: E402 - found through the path above
from op_jobs import DTYPES  # noqa: E402

TABLE = HERE / "operators.jsonl"
PAGE = HERE.parents[1] / "docs" / "operators.md"

WAYS = {"forward": "values", "backward": "gradients", "inplace": "in place", "dynamo": "through dynamo"}
SHORT = dict(zip(DTYPES, ("f32", "i64", "bf16", "f16", "f64", "i32", "b"), strict=True))
ORDER = ("f64", "f32", "f16", "bf16", "i64", "i32", "b")
MOST_CALLS = 4
"""Extern calls of one operator that are named."""

EAGER = (
    ("DynamicOutputShape", "how large the result is depends on the numbers"),
    ("DataDependentOutput", "the result is a Python number"),
    ("data pointer", "a kernel that the user brings as text"),
    ("alias annotations", "torch has no form of it that does not write its operand"),
    ("sparse", "sparse tensors"),
)
"""What torch says when a graph cannot be captured, in words."""

HEAD = """\
# Operators

What each operator of torch's own operator database (`op_db`) does under `torch.compile(backend="ferrite")`. This page
is written by `tests_integration/opinfo/op_page.py` from the table beside it, operators.jsonl; do not edit it.

Measured with {where}. To measure it again:
`python tests_integration/opinfo/run.py --device cuda --out table.jsonl`. Of each operator up to eight of the database's
calls at each dtype (of gradients four) are compared with eager, with float64 (or more digits) as the measure of both.
The criterion: no further from it than twice eager's own distance, plus what rounding the result explains, for tensors
as wholes and for each element; integers are equal.

## In figures

Right, of the pairs of operator and dtype that eager can do. "Eagerly" counts as right: the graph cannot be captured,
and runs as if it were not compiled, for the reason that the last table has.

| | pairs | compiled | eagerly | wrong | right |
|---|---|---|---|---|---|
{figures}

"""

SHARES = """\
## Kernels of its own

Of the {all} aten ops that TorchInductor 2.13 lowers, {own} are native or decomposed here and {design} are extern calls
by design: products, convolutions and attention. Of those that kernels can compute, that is {share:.1%}. The rest are
extern calls: {library}.

Of the ops that TorchInductor hands to the library, {more} are native or decomposed here: {more_names}.

Counted with torch {torch} by `python tests_integration/opinfo/op_share.py`.
`options={{"extern": "error"}}` refuses extern calls other than the ones by design, and says which op at which line
made one.

"""

OPERATORS = """\
## Operators one by one

Dtypes are those of the database at which the results are right: f64, f32, f16, bf16, i64, i32 and b (bool). In
brackets: what runs eagerly, or is wrong. "Kernels" alone means that nothing was an extern call in any of the calls
tried; what was one in some call is named. A dash there stands for nothing to compute, as for views and empty tensors.

| operator | values | gradients | in place | runs as |
|---|---|---|---|---|
"""


def condensed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record per operator and variant, from the rows of run.py: no times, and one reason of each kind."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["op"], row["variant"]
        record = found.setdefault(
            key, {"op": key[0], "variant": key[1], "ways": {}, "kernels": False, "externs": {}, "eager": "", "fail": {}}
        )
        for way, outcome in row["ways"].items():
            status = outcome["status"]
            if status == "none":
                continue
            record["ways"].setdefault(way, {}).setdefault(status, []).append(SHORT[row["dtype"]])
            record["kernels"] |= outcome["kernels"] > 0
            record["externs"].update(outcome["externs"])
            reason = outcome["reasons"][0] if outcome["reasons"] else ""
            if status == "eager":
                record["eager"] = record["eager"] or in_words(reason)
            elif status == "fail":
                record["fail"][f"{way} {row['dtype']}"] = reason
    return [found[key] for key in sorted(found)]


def with_part(records: Iterable[Mapping[str, Any]], part: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns records with the ways of others in the place of theirs.

    Raises:
        ValueError: one of the others is of an operator that has no record.
    """
    newer = {(record["op"], record["variant"]): record for record in part}
    ways = {way for record in newer.values() for way in record["ways"]}
    merged = []
    for record in records:
        new = newer.pop((record["op"], record["variant"]), {"ways": {}, "externs": {}, "eager": "", "fail": {}})
        kept = {way: found for way, found in record["ways"].items() if way not in ways}
        failing = {where: why for where, why in record["fail"].items() if where.partition(" ")[0] not in ways}
        merged.append(
            {
                **record,
                "ways": {way: found for way in WAYS if (found := new["ways"].get(way) or kept.get(way))},
                "externs": record["externs"] | new["externs"],
                "eager": record["eager"] or new["eager"],
                "fail": failing | new["fail"],
            }
        )
    if any(record["ways"] for record in newer.values()):
        raise ValueError(f"no record of {', '.join(op for op, _ in newer)}: measure the whole table")
    return merged


def in_words(reason: str) -> str:
    """Returns why a graph runs eagerly in a few words."""
    reason = re.sub(r"\(/[^()]*/", "(", reason)  # of a path the name of the file is enough
    return next((words for mark, words in EAGER if mark in reason), " ".join(reason.partition(" @ ")[0].split())[:160])


def shares() -> dict[str, Any]:
    """Returns how many aten ops are native, of which torch this is true, and the names of those that are not."""
    import torch

    from op_share import share

    lowered, library = share("lowered"), share("library")
    return {
        "torch": torch.__version__.split("+")[0],
        "own": len(lowered.own),
        "design": len(lowered.design),
        "library": sorted(lowered.library),
        "more": sorted(library.own),
    }


def page_text(head: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page."""
    share = head["share"]
    kernels = share["own"] / (share["own"] + len(share["library"]))
    return "".join(
        (
            HEAD.format(where=head["where"], figures="\n".join(figures(records))),
            failures(records),
            SHARES.format(
                all=share["own"] + share["design"] + len(share["library"]),
                own=share["own"],
                design=share["design"],
                share=kernels,
                torch=share["torch"],
                library=", ".join(f"`{name}`" for name in share["library"]) or "none",
                more=len(share["more"]),
                more_names=", ".join(f"`{name}`" for name in share["more"]),
            ),
            OPERATORS,
            *(operator_line(record) for record in records),
        )
    )


def figures(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of the table of counts, one per way."""
    lines = []
    for way, title in WAYS.items():
        counts: Counter[str] = Counter()
        for record in records:
            for status, dtypes in record["ways"].get(way, {}).items():
                counts[status] += len(dtypes)
        total = sum(counts.values())
        right = (total - counts["fail"]) / total if total else 1.0
        lines.append(
            f"| {title} | {total} | {counts['pass']} | {counts['eager']} | {counts['fail']} | {100 * right:.2f} % |"
        )
    return lines


def failures(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the section about what is wrong, each with why."""
    lines = []
    for record in records:
        if record["fail"]:
            where = ", ".join(record["fail"])
            lines.append(f"| {name_of(record)} | {where} | {escaped(explanation(record['op']))} |\n")
    if not lines:
        return ""
    return "## What is wrong, and why\n\n| operator | where | why |\n|---|---|---|\n" + "".join(lines) + "\n"


def operator_line(record: Mapping[str, Any]) -> str:
    cells = [cell(record["ways"].get(way, {})) for way in ("forward", "backward", "inplace")]
    return f"| {name_of(record)} | {' | '.join(cells)} | {means(record)} |\n"


def name_of(record: Mapping[str, Any]) -> str:
    return f"`{record['op']}`" + (f" ({record['variant']})" if record["variant"] else "")


def cell(statuses: Mapping[str, Sequence[str]]) -> str:
    """Returns the dtypes of one way: right ones first, then the others in brackets."""
    parts = [in_order(statuses.get("pass", ()))]
    parts += [
        f"({word}: {in_order(statuses[status])})"
        for status, word in (("eager", "eagerly"), ("fail", "wrong"))
        if status in statuses
    ]
    return " ".join(filter(None, parts)) or "–"


def in_order(dtypes: Iterable[str]) -> str:
    return " ".join(sorted(dtypes, key=ORDER.index))


def means(record: Mapping[str, Any]) -> str:
    """Returns what an operator runs as."""
    from ferrite_torch.diagnostics.refusals import FAMILY

    calls = sorted({op.removeprefix("aten.").split(".")[0] for op in record["externs"]})
    named = ", ".join(f"`{name}`{' (by design)' if name in FAMILY else ''}" for name in calls[:MOST_CALLS])
    more = f" and {len(calls) - MOST_CALLS} more" if len(calls) > MOST_CALLS else ""
    parts = ["kernels"] if record["kernels"] else []
    parts += [f"library: {named}{more}"] if calls else []
    parts += [f"eagerly: {record['eager']}"] if record["eager"] else []
    return escaped("; ".join(parts)) or "–"


def escaped(text: str) -> str:
    """Returns text as a cell of a table may hold it."""
    return text.replace("|", "\\|")


def read_table() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the first line of operators.jsonl, and the others."""
    head, *records = map(json.loads, TABLE.read_text(encoding="utf-8").splitlines())
    return head, records


def write_table(head: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
    lines = [json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *records)]
    TABLE.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="what run.py wrote; without it operators.jsonl stays as it is")
    parser.add_argument("--where", help="versions, GPU and date of the table")
    parser.add_argument("--part", action="store_true", help="the table has some ways only: the others stay")
    chosen = parser.parse_args()
    if chosen.table is not None:
        if not chosen.where:
            parser.error("--table needs --where")
        records = condensed(map(json.loads, chosen.table.read_text(encoding="utf-8").splitlines()))
        head, others = read_table()
        if chosen.part:
            write_table({**head, "where": chosen.where}, with_part(others, records))
        else:
            write_table({"where": chosen.where, "share": shares()}, records)
    PAGE.write_text(page_text(*read_table()), encoding="utf-8")


if __name__ == "__main__":
    main()
