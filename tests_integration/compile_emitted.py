"""Compiles every kernel that a test run emitted, for a GPU that need not be there.

python tests_integration/compile_emitted.py FOLDER [--target sm_90] [--all] [--one-of N]

The folder is what ``pytest --emitted FOLDER tests_integration`` filled: one JSON kernel spec per file. Each source must
parse as Python, and compile with the first choice of the config policy. Templates, of which one takes as long as thirty
others, are calls of device functions: of those that differ in numbers alone the first and the last are compiled, or all
of them with ``--all``. With ``--one-of`` a sample of each form is compiled: half of all kernels are pointwise ones.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ferrite_runtime import KernelSpec, Options
from ferrite_runtime.compilation.cross_compilation import cross_compile_kernels
from ferrite_runtime.devices.descriptors import typical_device
from ferrite_runtime.formats.target import Target


def without_likes(specs: Iterable[KernelSpec]) -> list[KernelSpec]:
    """Returns the specs without the templates between the first and the last of those that differ in numbers alone."""
    found: list[KernelSpec] = []
    alike: dict[str, list[KernelSpec]] = {}
    for spec in specs:
        if spec.form == "template":
            alike.setdefault(re.sub(r"\b\d+\b", "0", spec.source.replace(spec.name, "")), []).append(spec)
        else:
            found.append(spec)
    for likes in alike.values():
        in_order = sorted(likes, key=lambda spec: (len(spec.source), spec.source))
        found += [in_order[0], in_order[-1]] if len(in_order) > 1 else in_order
    return found


LEAST = 12
"""Kernels of each form that a sample has, if there are so many."""


def sample(specs: Iterable[KernelSpec], one_of: int) -> list[KernelSpec]:
    """Returns one of so many kernels of each form, or a few of a form that has few; the same of the same kernels."""
    forms: dict[str, list[KernelSpec]] = {}
    for spec in specs:
        forms.setdefault(spec.form, []).append(spec)
    in_order = (sorted(alike, key=lambda spec: spec.id) for alike in forms.values())
    return [spec for alike in in_order for spec in alike[: max(LEAST, -(-len(alike) // one_of))]]


def main() -> int:
    """Returns 0 if all kernels parse and compile, else 1; prints those that do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--all", action="store_true", help="templates that differ in numbers alone, too")
    parser.add_argument("--one-of", type=int, default=1, help="compile one of so many kernels of each form")
    chosen = parser.parse_args()
    paths = sorted(chosen.folder.glob("*.json"))
    if not paths:
        print(f"no kernels in {chosen.folder}; run pytest with --emitted first")
        return 1
    specs = [KernelSpec.from_mapping(json.loads(path.read_text())) for path in paths]
    for spec in specs:
        ast.parse(spec.source)
    target, wanted = Target.parse(chosen.target), specs if chosen.all else without_likes(specs)
    distinct = len(wanted)
    wanted = sample(wanted, chosen.one_of)
    report = cross_compile_kernels(wanted, target, Options(tune="none", use_cache=False), typical_device(target))
    for row in report.failures:
        print(f"{row.kernel} {row.config}: {row.error}")
    passed = len(report.rows) - len(report.failures)
    print(f"kernels for {chosen.target}: {passed} passed, {len(report.failures)} failed")
    if len(specs) > distinct:
        print(f"{len(specs) - distinct} templates that differ from others in numbers alone were left out")
    if distinct > len(wanted):
        print(f"{distinct - len(wanted)} kernels were left to a run without --one-of")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
