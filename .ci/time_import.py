"""Prints how long importing a package takes in a fresh interpreter, and fails if the best of five is over a limit."""

import argparse
import subprocess
import sys

CODE = "import time; t = time.perf_counter(); import {}; print(1e3 * (time.perf_counter() - t))"


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--limit-ms", type=float, required=True)
    arguments = parser.parse_args()
    command = [sys.executable, "-I", "-c", CODE.format(arguments.package)]
    times = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    print(f"import {arguments.package}: best {min(times):.1f} ms, worst {max(times):.1f} ms of {len(times)}")
    return 0 if min(times) <= arguments.limit_ms else 1


if __name__ == "__main__":
    sys.exit(main())
