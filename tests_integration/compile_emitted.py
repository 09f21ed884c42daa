"""Compiles every kernel that a test run emitted, for a GPU that need not be there.

python tests_integration/compile_emitted.py FOLDER [--target sm_90]

The folder is what ``pytest --emitted FOLDER tests_integration`` filled: one JSON kernel spec per file. Each source must
parse as Python, and compile with the first choice of the config policy.
"""

import argparse
import ast
import json
import sys
from pathlib import Path

from ferrite_runtime import KernelSpec, Options
from ferrite_runtime.cross import cross_compile_kernels
from ferrite_runtime.devices import typical_device
from ferrite_runtime.target import Target


def main() -> int:
    """Returns 0 if all kernels parse and compile, else 1; prints those that do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="sm_90")
    chosen = parser.parse_args()
    paths = sorted(chosen.folder.glob("*.json"))
    if not paths:
        print(f"no kernels in {chosen.folder}; run pytest with --emitted first")
        return 1
    specs = [KernelSpec.from_mapping(json.loads(path.read_text())) for path in paths]
    for spec in specs:
        ast.parse(spec.source)
    target = Target.parse(chosen.target)
    report = cross_compile_kernels(specs, target, Options(tune="none", use_cache=False), typical_device(target))
    for row in report.failures:
        print(f"{row.kernel} {row.config}: {row.error}")
    print(
        f"kernels for {chosen.target}: {len(report.rows) - len(report.failures)} passed, {len(report.failures)} failed"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
