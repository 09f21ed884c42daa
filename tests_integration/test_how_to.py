"""The worked examples of the how-to pages: each diff is applied to a copy of the tree, and what the page says passes.

A page with a ``diff`` block has a ``sh`` block behind it, whose lines are run in the patched copy. It is no matter to
``git apply`` that lines have moved, as long as a line around each change is there. Where it is not, make the change by
hand in a checkout, and put ``git diff -U1`` on the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "how-to"
FOLDERS = ("packages", "docs", "tests_integration", "benchmarks")
SECONDS = 300
"""After which a command is given up; on two idle cores none takes a minute."""


def examples() -> list[tuple[str, str, str]]:
    """Returns ``(page, diff, commands)`` for each worked example."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        parts = re.split(r"^```diff\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for diff, rest in zip(parts[1::2], parts[2::2], strict=True):
            commands = re.search(r"^```sh\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
            assert commands is not None, f"{page.name} does not say what passes behind its diff"
            found.append((page.stem, diff, commands.group(1)))
    return found


EXAMPLES = examples()


def copy_tree(to: Path) -> None:
    """Copies what the examples change and test; the copy is a repository of its own, with nothing committed."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=unwanted)
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, to)
    subprocess.run(["git", "init", "--quiet"], cwd=to, check=True)


def run(command: list[str], folder: Path, **options: str) -> str:
    """Returns what a command wrote; fails with it where the command does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTEST_"))}
    given = options.get("stdin")
    ended = subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": ""}, input=given, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{shlex.join(command)}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="diffs are applied by git")
@pytest.mark.parametrize(("page", "diff", "commands"), EXAMPLES, ids=[page for page, _, _ in EXAMPLES])
def test_a_worked_example_works(page: str, diff: str, commands: str, tmp_path: Path) -> None:
    copy_tree(tmp_path)
    run(["git", "apply", "-C1", "--recount", "-"], tmp_path, stdin=diff)
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "python"
        passed = re.search(r"(\d+) passed", run([sys.executable, *arguments], tmp_path))
        assert passed is not None, f"nothing was tested by: {line}"


def test_a_kernel_form_is_one_file_of_each_layer() -> None:
    (diff,) = (diff for page, diff, _ in EXAMPLES if page == "add-a-kernel-form")
    changed = re.findall(r"^\+\+\+ b/packages/(ferrite-\w+)/src/", diff, re.MULTILINE)
    assert sorted(changed) == ["ferrite-runtime", "ferrite-scheduler", "ferrite-triton"]


def test_pages_that_say_how_to_add_something_have_an_example() -> None:
    assert {page for page, _, _ in EXAMPLES} >= {
        "add-an-op",
        "add-a-kernel-form",
        "add-a-target-printer",
        "change-what-fuses",
    }
