"""The command line: ``python -m ferrite_ir check|print|opt|eval|fingerprint FILE``; ``-`` reads standard input."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from ferrite_ir.language.graph import Graph, Module
from ferrite_ir.reference.evaluator import EvaluationError, evaluate
from ferrite_ir.text.fingerprint import fingerprint
from ferrite_ir.text.parser import parse_module
from ferrite_ir.text.printer import graph_text, module_text
from ferrite_ir.text.tokens import ParseError
from ferrite_ir.verification.verifier import VerificationError, require_valid, verify

from . import __version__
from .command_line import EPILOG, CommandRefused, Parser, read_json, read_text, run_command
from .passes import PASSES, PIPELINE, Pass, parse_pipeline, pass_text

FAULTS = (ParseError, VerificationError, EvaluationError, ValueError, RecursionError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status, as `command_line` says."""
    return run_command(lambda: _parser().parse_args(arguments), _run, arguments, FAULTS)


def _run(options: argparse.Namespace) -> None:
    options.command(parse_module(read_text(options.file), options.file), options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m ferrite_ir", description="Checks, prints, optimises and runs programs.", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=f"ferrite-ir {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=EPILOG)
        sub.add_argument("--json", action="store_true", help="print JSON, errors too")
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


def _show(text: str, options: argparse.Namespace, **facts: Any) -> None:
    """Prints a text, or facts as JSON where that is asked for."""
    print(json.dumps(facts, indent=2) if options.json else text)


def _check(module: Module, options: argparse.Namespace) -> None:
    require_valid(module)
    count = sum(len(graph.definitions) for graph in module.graphs)
    graphs = len(module.graphs)
    _show(
        f"{options.file}: {graphs} graphs, {count} definitions, no problems", options, graphs=graphs, definitions=count
    )


def _print(module: Module, options: argparse.Namespace) -> None:
    _show(module_text(module), options, program=module_text(module))


def _fingerprint(module: Module, options: argparse.Namespace) -> None:
    _show(fingerprint(module), options, fingerprint=fingerprint(module))


def _opt(module: Module, options: argparse.Namespace) -> None:
    pipeline = parse_pipeline(options.passes)
    require_valid(module)

    def watch(pass_: Pass, graph: Graph) -> None:
        if options.print_after_each and not options.json:
            print(f"# after {pass_text(pass_)}\n{graph_text(graph)}\n")
        problems = verify(graph) if options.verify_each else ()
        if problems:
            print(f"# {pass_text(pass_)} broke the program", file=sys.stderr)
            raise VerificationError(graph, problems)

    result = pipeline.run_module(module, watch)
    if options.json or not options.print_after_each:
        _show(module_text(result), options, program=module_text(result))


def _eval(module: Module, options: argparse.Namespace) -> None:
    inputs = _decoded(read_json(options.inputs))
    if not isinstance(inputs, list):
        raise ValueError("the inputs are a JSON list with one entry for each input of the graph")  # noqa: TRY004
    require_valid(module)
    symbols = dict(map(_size_of, options.size))
    print(json.dumps(_encoded(evaluate(module, inputs, symbols=symbols))))


def _size_of(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal():
        raise CommandRefused(f"--size: {text!r} is no size; write one as n=4")
    return name, int(value)


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
