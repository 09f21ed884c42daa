"""``python -m ferrite_scheduler file.fir``: prints the schedule of a graph and why it is what it is."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ferrite_ir import PIPELINE, ParseError, parse_module

from . import Policy, SchedulingError, Target, explain, schedule


def main(arguments: list[str] | None = None) -> int:
    """Prints kernels, steps and decisions for each graph of a file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ferrite_scheduler", description=__doc__)
    parser.add_argument("file", help="a module in text form, - for standard input")
    parser.add_argument("--target", help="a JSON file with facts about the device", type=Path)
    parser.add_argument("--as-is", action="store_true", help="do not run the passes of the language first")
    parser.add_argument("--decisions", action="store_true", help="print every fusion considered")
    parser.add_argument(
        "--explain", nargs=2, metavar=("A", "B"), help="say why two values are, or are not, made together"
    )
    options = parser.parse_args(arguments)
    target = (
        Target()
        if options.target is None
        else Target.from_mapping(json.loads(options.target.read_text(encoding="utf-8")))
    )
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    try:
        for graph in parse_module(text, options.file).graphs:
            found = schedule(graph if options.as_is else PIPELINE.run(graph), target, Policy())
            print(explain(found, *options.explain) if options.explain else found)
            if options.decisions:
                print("\n".join(f"# {decision}" for decision in found.decisions))
    except (ParseError, SchedulingError, KeyError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
