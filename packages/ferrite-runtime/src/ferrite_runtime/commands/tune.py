"""Finds the fastest configs of a file's kernels on this GPU, and keeps them in the store."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ferrite_runtime.ahead_of_time.program_tuning import TuningReport, tune
from ferrite_runtime.commands.measuring import add_measuring, format_time, read_sizes
from ferrite_runtime.commands.output import FINE, FOUND, add_json, print_json, print_table
from ferrite_runtime.commands.programs import add_file, read_file
from ferrite_runtime.formats.measurements import merge
from ferrite_runtime.process.options import EFFORTS, Options
from ferrite_runtime.tuning.kernel_tuning import ignore_event
from ferrite_runtime.tuning.progress import choose_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    parser.add_argument(
        "--effort",
        default="full",
        choices=EFFORTS,
        help="quick: the candidates of every kernel; full: wider tables and the neighbours of the best as well",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="limit on the time spent (default: 60)")
    parser.add_argument("--again", action="store_true", help="measure what is known already")
    parser.add_argument("--isolate", action="store_true", help="measure in a process that a faulting kernel may kill")
    parser.add_argument("--output", type=Path, metavar="BUNDLE", help="write the bundle with what was measured in it")
    parser.add_argument("--quiet", action="store_true", help="do not tell on stderr how it goes")
    add_measuring(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status: 1 where a kernel could not be tuned."""
    bundle = read_file(arguments.file)
    report = tune(
        bundle,
        effort=arguments.effort,
        seconds=arguments.seconds,
        sizes=read_sizes(arguments),
        elements=arguments.elements,
        again=arguments.again,
        isolate=arguments.isolate,
        options=Options(workers=arguments.workers),
        operators=arguments.operator,
        trust=arguments.trust,
        listen=ignore_event if arguments.quiet else choose_progress(sys.stderr),
    )
    if arguments.output is not None:
        replace(bundle, tuning=merge((*bundle.tuning, *report.records)), digest="").save(arguments.output)
    if arguments.json:
        print_json(report.to_mapping())
    else:
        print_report(report)
    return FOUND if report.skipped else FINE


def print_report(report: TuningReport) -> None:
    """Prints a row for each kernel, then what it took."""
    rows = [
        (
            row.name,
            row.state,
            format_time(row.reference_ms),
            format_time(row.ms),
            "-" if row.speedup is None else f"{row.speedup:.2f}",
            row.outcome.measured if row.outcome else 0,
            row.config or row.reason,
        )
        for row in report.kernels
    ]
    print_table(("kernel", "state", "untuned µs", "tuned µs", "faster", "measured", "config"), rows)
    print(
        f"{report.device}: {report.measured} configs measured in {report.seconds:.1f} s, {len(report.skipped)} skipped"
    )
