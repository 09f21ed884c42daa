"""``python -m ferrite_scheduler file.fir``: prints the schedule of a graph and why it is what it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ferrite_ir import PIPELINE, ParseError, VerificationError, parse_module, require_valid
from ferrite_ir.command_line import EPILOG, CommandRefused, Parser, read_json, read_text, run_command

from . import Policy, SchedulingError, Target, __version__, explain, schedule

FAULTS = (ParseError, SchedulingError, VerificationError, KeyError, ValueError, RecursionError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints kernels, steps and decisions for each graph of a file; returns the exit status."""
    return run_command(lambda: _parser().parse_args(arguments), _run, arguments, FAULTS)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m ferrite_scheduler", description=__doc__, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"ferrite-scheduler {__version__}")
    parser.add_argument("file", help="a module in text form, - for standard input")
    parser.add_argument("--target", help="a JSON file with facts about the device")
    parser.add_argument("--as-is", action="store_true", help="do not run the passes of the language first")
    parser.add_argument("--decisions", action="store_true", help="print every fusion considered")
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")
    parser.add_argument(
        "--explain", nargs=2, metavar=("A", "B"), help="say why two values are, or are not, made together"
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    target = Target() if options.target is None else _target(options.target)
    reports = []
    for graph in parse_module(read_text(options.file), options.file).graphs:
        require_valid(graph)
        found = schedule(graph if options.as_is else PIPELINE.run(graph), target, Policy())
        text = str(explain(found, *options.explain) if options.explain else found)
        decisions = list(map(str, found.decisions)) if options.decisions else []
        reports.append({"graph": graph.name, "text": text, "decisions": decisions})
    if options.json:
        print(json.dumps(reports, indent=2))
        return
    for each in reports:
        print("\n".join([str(each["text"]), *(f"# {decision}" for decision in each["decisions"])]))


def _target(file: str) -> Target:
    value = read_json(file)
    if not isinstance(value, dict):
        raise CommandRefused(f"{file}: facts about a device are a JSON object")
    try:
        return Target.from_mapping(value)
    except (SchedulingError, TypeError, ValueError) as error:
        raise CommandRefused(f"{file}: {error}") from error


if __name__ == "__main__":
    raise SystemExit(main())
