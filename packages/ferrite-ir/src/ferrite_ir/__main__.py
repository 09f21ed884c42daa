"""The command line: ``python -m ferrite_ir check|print|opt|eval|fingerprint FILE``; ``-`` reads standard input."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .evaluate import EvaluationError, evaluate
from .fingerprint import fingerprint
from .graph import Graph, Module
from .parse import parse_module
from .passes import PASSES, PIPELINE, Pass, parse_pipeline, pass_text
from .text import graph_text, module_text
from .tokens import ParseError
from .verify import VerificationError, require_valid, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, or 1 with a message on standard error."""
    options = _parser().parse_args(arguments)
    try:
        module = parse_module(_read(options.file), options.file)
        options.command(module, options)
    except (ParseError, VerificationError, EvaluationError, ValueError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ferrite_ir", description="Checks, prints, optimises and runs programs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("file", help="a .fir file, or - for standard input")
        sub.set_defaults(command=function)
        return sub

    command("check", _check, "Reports every broken rule in the listing.")
    command("print", _print, "Prints the program in its normal form.")
    command("fingerprint", _fingerprint, "Prints a hash of the program's content.")
    opt = command("opt", _opt, "Runs passes and prints the result.")
    opt.add_argument(
        "--passes",
        default=str(PIPELINE),
        help=f"like 'simplify,inline{{max_cost=32}}'; known: {', '.join(PASSES)}, default (= %(default)s)",
    )
    opt.add_argument("--print-after-each", action="store_true", help="print the program after each pass")
    opt.add_argument("--verify-each", action="store_true", help="check the program after each pass")
    run = command("eval", _eval, "Runs the program in plain Python and prints its outputs as JSON.")
    run.add_argument(
        "inputs", help='a JSON file with a list of inputs (nested lists; "nan", "inf", "-inf"), or - for standard input'
    )
    run.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="value of a symbolic size that no input shows"
    )
    return parser


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _check(module: Module, options: argparse.Namespace) -> None:
    require_valid(module)
    count = sum(len(graph.definitions) for graph in module.graphs)
    print(f"{options.file}: {len(module.graphs)} graphs, {count} definitions, no problems")


def _print(module: Module, options: argparse.Namespace) -> None:
    print(module_text(module))


def _fingerprint(module: Module, options: argparse.Namespace) -> None:
    print(fingerprint(module))


def _opt(module: Module, options: argparse.Namespace) -> None:
    pipeline = parse_pipeline(options.passes)
    require_valid(module)

    def watch(pass_: Pass, graph: Graph) -> None:
        if options.print_after_each:
            print(f"# after {pass_text(pass_)}\n{graph_text(graph)}\n")
        problems = verify(graph) if options.verify_each else ()
        if problems:
            print(f"# {pass_text(pass_)} broke the program", file=sys.stderr)
            raise VerificationError(graph, problems)

    result = pipeline.run_module(module, watch)
    if not options.print_after_each:
        print(module_text(result))


def _eval(module: Module, options: argparse.Namespace) -> None:
    inputs = _decoded(json.loads(_read(options.inputs)))
    if not isinstance(inputs, list):
        raise ValueError("the inputs are a JSON list with one entry for each input of the graph")  # noqa: TRY004
    require_valid(module)
    symbols = {name: int(value) for name, _, value in (text.partition("=") for text in options.size)}
    print(json.dumps(_encoded(evaluate(module, inputs, symbols=symbols))))


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _encoded(value: Any) -> Any:
    """Returns nested lists with non-finite floats as strings, since JSON has none."""
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
