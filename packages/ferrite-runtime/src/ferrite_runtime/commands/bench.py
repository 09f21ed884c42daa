"""Times a file's kernels on this GPU, beside the time that their traffic takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.ahead_of_time.kernel_times import SAMPLES, TimesReport, measure_kernels
from ferrite_runtime.ahead_of_time.program_tuning import open_session
from ferrite_runtime.ahead_of_time.roofline import plot_roofline
from ferrite_runtime.commands.measuring import add_measuring, format_time, read_sizes
from ferrite_runtime.commands.output import FINE, FOUND, add_json, format_bytes, print_json, print_table
from ferrite_runtime.commands.programs import add_file, read_file
from ferrite_runtime.process.options import EFFORTS, Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    parser.add_argument(
        "--tune",
        default="default",
        choices=EFFORTS,
        help="how configs are chosen that nobody measured before (default: as when running)",
    )
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"launches per kernel (default: {SAMPLES})")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw a roofline; needs matplotlib")
    add_measuring(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status: 1 where a kernel could not be timed."""
    bundle = read_file(arguments.file)
    options = Options(tune=arguments.tune, workers=arguments.workers)
    session = open_session(
        bundle,
        options,
        sizes=read_sizes(arguments),
        elements=arguments.elements,
        operators=arguments.operator,
        trust=arguments.trust,
    )
    report = measure_kernels(session, max(2, arguments.samples))
    if arguments.json:
        print_json(report.to_mapping())
    else:
        print_report(report)
    if arguments.plot is not None:
        plot_roofline(report, arguments.plot)
    return FOUND if report.skipped or any(row.problem for row in report.kernels) else FINE


def print_report(report: TimesReport) -> None:
    """Prints a row for each kernel, the one that takes most of the time first, then the sum."""
    by_time = sorted(
        report.kernels, key=lambda row: row.spread.median * row.launches if row.spread else 0.0, reverse=True
    )
    rows = [
        (
            row.name,
            row.launches,
            format_time(row.spread.median if row.spread else None),
            "-" if row.spread is None else f"±{row.spread.width / 2:.1%}",
            format_bytes(row.bytes),
            "-" if row.share is None else f"{row.share:.0%}",
            row.source,
            row.problem or row.config,
        )
        for row in by_time
    ]
    print_table(("kernel", "launches", "µs", "spread", "moves", "of bound", "by", "config"), rows)
    timed = [row for row in report.kernels if row.spread is not None]
    total = sum(row.spread.median * row.launches for row in timed if row.spread)
    bound = sum(row.bound_ms * row.launches for row in timed)
    share = f", {bound / total:.0%} of it the bandwidth bound" if total else ""
    print(
        f"{report.device} at {report.bandwidth / 1e12:.2f} TB/s: {sum(row.launches for row in timed)} launches, "
        f"{total * 1e3:.1f} µs{share}"
    )
    for name, reason in report.skipped:
        print(f"not run: {name}: {reason}")
