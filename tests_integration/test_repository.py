"""The repository agrees with itself: the package table, the manifests, the README and what the pages say."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from repository_files import NOXFILE, PACKAGES, ROOT, text_of, tracked_files

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def manifest_of(package) -> dict:
    return tomllib.loads((package.folder / "pyproject.toml").read_text())


def distribution(requirement: str) -> str:
    """Returns the name in a requirement such as "a[b]>=1"."""
    return re.match(r"[A-Za-z0-9._-]+", requirement).group().lower()


# The package table and the manifests


def test_every_package_folder_is_in_the_table():
    assert {path.name for path in (ROOT / "packages").iterdir() if path.is_dir()} == {each.name for each in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_manifest_agrees_with_table(package):
    project = manifest_of(package)["project"]
    required = {distribution(requirement) for requirement in project["dependencies"]}
    assert project["name"] == package.name
    assert required == {*package.needs, *(NOXFILE.PACKAGES[key].name for key in package.siblings)}
    assert set(project.get("optional-dependencies", {})) == set(package.extras)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_requirements_are_ranges_with_a_lower_bound(package):
    project = manifest_of(package)["project"]
    optional = project.get("optional-dependencies", {}).values()
    for requirement in [*project["dependencies"], *(each for group in optional for each in group)]:
        assert ">=" in requirement, f"{requirement} has no lower bound"
        assert "==" not in requirement, f"{requirement} is pinned"
    assert project["requires-python"].startswith(">=3.11")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_package_has_all_its_papers(package):
    missing = [name for name in ("README.md", "CHANGELOG.md", "LICENSE") if not (package.folder / name).is_file()]
    assert not missing
    assert (package.folder / "src" / package.import_name / "py.typed").is_file()
    assert (package.folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert manifest_of(package)["build-system"]["build-backend"] == "hatchling.build"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_version_has_a_changelog_entry(package):
    version = manifest_of(package)["project"]["version"]
    assert re.search(rf"^## \[?{re.escape(version)}\b", (package.folder / "CHANGELOG.md").read_text(), re.MULTILINE)
    init = (package.folder / "src" / package.import_name / "__init__.py").read_text()
    stated = re.search(r"""^__version__ = ["'](.+)["']""", init, re.MULTILINE)
    assert stated is None or stated.group(1) == version


def test_versions_in_tests_satisfy_the_lower_bounds():
    version = pytest.importorskip("packaging.version").Version
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for package in PACKAGES:
        for requirement in manifest_of(package)["project"]["dependencies"]:
            name, bound = distribution(requirement), re.search(r">=([\d.]+)", requirement).group(1)
            assert name.startswith("ferrite-") or version(pins[name]) >= version(bound)


def test_every_supported_torch_is_in_the_matrix():
    """The table has the versions that manifests and README name, from the first to the last, and the pinned one."""
    names = [each.name for each in NOXFILE.TORCHES]
    minors = [int(name.removeprefix("2.")) for name in names]
    assert minors == list(range(minors[0], minors[-1] + 1))
    bounds = f"torch>={names[0]},<2.{minors[-1] + 1}"
    assert bounds in manifest_of(NOXFILE.PACKAGES["torch"])["project"]["dependencies"]
    assert manifest_of(NOXFILE.PACKAGES["runtime"])["project"]["optional-dependencies"]["torch"] == [bounds]
    assert f"| torch | {names[0]} to {names[-1]} |" in (ROOT / "README.md").read_text()
    pinned, constraints = NOXFILE.TORCHES[names.index("2.13")], (ROOT / "constraints.txt").read_text().split("\n")
    assert f"torch=={pinned.torch}" in constraints
    assert f"triton=={pinned.triton}" in constraints, "that torch's wheel for Linux asks for this one, and no other"


def test_a_torch_of_the_matrix_takes_the_place_of_two_pins():
    pins = set((ROOT / "constraints.txt").read_text().split("\n")) - {""}
    other = set(NOXFILE.constraints_with(NOXFILE.Torch("2.99.1", triton="3.98.0")).split("\n")) - {""}
    assert {line.partition("==")[0] for line in pins - other} == {"torch", "triton"}
    assert other - pins == {"torch==2.99.1", "triton==3.98.0"}


def test_the_matrix_runs_what_is_there():
    assert [each for each in NOXFILE.SAMPLE if not (ROOT / "tests_integration" / each).exists()] == []


def test_every_supported_python_is_stated_alike():
    stated = [
        [each.rpartition(" ")[2] for each in manifest_of(package)["project"]["classifiers"] if "Python :: 3." in each]
        for package in PACKAGES
    ]
    assert all(each == stated[0] for each in stated)
    assert f"| Python | {', '.join(stated[0])} |" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_contracts_forbid_what_the_table_forbids(package):
    contracts = SETTINGS["tool"]["importlinter"]["contracts"]
    own = (each for each in contracts if each.get("source_modules") == [package.import_name])
    assert set(package.forbidden) == set(next(own, {"forbidden_modules": ()})["forbidden_modules"])


def test_settings_name_every_source_folder():
    folders = [f"packages/{each.name}/src" for each in PACKAGES]
    test_folders = [f"packages/{each.name}/tests" for each in PACKAGES]
    pythonpath = SETTINGS["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert pythonpath == [*folders, *test_folders, "tests_integration"]
    assert [path.removeprefix("$MYPY_CONFIG_FILE_DIR/") for path in SETTINGS["tool"]["mypy"]["mypy_path"]] == folders
    assert SETTINGS["tool"]["importlinter"]["root_packages"] == [each.import_name for each in PACKAGES]


def test_modules_that_tests_share_have_names_of_their_own():
    folders = [*(each.folder / "tests" for each in PACKAGES), ROOT / "tests_integration"]
    shared = [
        path for folder in folders for path in folder.glob("*.py") if not path.name.startswith(("test_", "conftest"))
    ]
    by_name = Counter(path.name for path in shared)
    assert not [str(path.relative_to(ROOT)) for path in shared if by_name[path.name] > 1]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_imports_are_declared(package):
    """Everything a package's source imports, in functions too, is its own, the standard library's or a requirement."""
    project = manifest_of(package)["project"]
    optional = project.get("optional-dependencies", {}).values()
    required = {distribution(each).replace("-", "_") for each in project["dependencies"]}
    required |= {distribution(each).replace("-", "_") for group in optional for each in group}
    allowed = {package.import_name, *sys.stdlib_module_names, *required}
    undeclared = {}
    for path in (package.folder / "src").rglob("*.py"):
        for name in imported_names(ast.parse(path.read_text())):
            if name.partition(".")[0] not in allowed:
                undeclared.setdefault(name, path.relative_to(ROOT))
    assert not undeclared


def imported_names(tree: ast.AST) -> list[str]:
    """Returns the absolute names that a module imports, wherever in it."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
    return names


# What the pages say


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in (path for path in tracked_files() if path.suffix == ".md"):
        prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
        targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", prose)
        local = [target for target in targets if "://" not in target]
        broken += [f"{page.relative_to(ROOT)} -> {each}" for each in local if not (page.parent / each).exists()]
    assert not broken


ABSENT = {
    # What modules were called, in changelogs.
    "ferrite_ir.graph", "ferrite_runtime.spec", "ferrite_scheduler.simulate", "ferrite_torch.lower",
    "ferrite/devices",  # below the user's configuration folder
    "benchmark-results/", ".nox/dev",  # made by commands that the page names
    "v1/", "/tmp", "s0//2", "//",  # a folder of old stores, the system's, a quotient, an operator
}  # fmt: skip
"""What pages name that is not in this tree, and need not be."""


def said_of(page: Path) -> str:
    """Returns what a page says of this tree: not the worked examples, which say what is to be added."""
    return re.sub(r"^```diff\n.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def is_defined(dotted: str) -> bool:
    """Returns whether a dotted name is a folder, a module, or a name that one of them has."""
    first, *rest = dotted.split(".")
    place = next(package.folder / "src" / first for package in PACKAGES if package.import_name == first)
    while rest and ((place / rest[0]).is_dir() or (place / f"{rest[0]}.py").is_file()):
        folder, name = place, rest.pop(0)
        place = folder / name if (folder / name).is_dir() else folder / f"{name}.py"
        if place.is_file():
            break
    if not rest:
        return True
    names = set()
    for node in ast.walk(ast.parse(text_of(place if place.is_file() else place / "__init__.py"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add(node.asname or node.name)
            case ast.Constant(value=str() as text):  # names that a package imports when they are first used
                names.add(text)
    return rest[0] in names


def test_modules_that_pages_name_exist():
    packages = "|".join(package.import_name for package in PACKAGES)
    dotted = re.compile(rf"(?<![\w./-])((?:{packages})(?:\.[a-zA-Z_]\w*)+)")
    named = {(page.relative_to(ROOT), each) for page in pages() for each in dotted.findall(said_of(page))}
    assert not sorted((str(page), each) for page, each in named if each not in ABSENT and not is_defined(each))


def test_files_that_pages_name_exist():
    """A page names a file or folder by its path, or by the end of it where that is enough."""
    files = [path.relative_to(ROOT) for path in tracked_files()]
    ends = {each.as_posix() for path in files for each in (path, *path.parents)}
    ends |= {end.split("/", skip)[-1] for end in ends for skip in range(1, end.count("/") + 1)}
    path_like = re.compile(r"[\w.~*-]*(?:/[\w.*-]*)+|[\w*-]+\.(?:py|md|toml|h|c)")
    missing = set()
    for page in pages():
        for quoted in re.findall(r"`([^`\s]+)`", said_of(page)):
            if not path_like.fullmatch(quoted) or quoted.startswith("~") or quoted in ABSENT:
                continue
            wanted = quoted.rstrip("/")
            if (
                wanted not in ends
                and not any(fnmatch(end, wanted) for end in ends)
                and not (page.parent / wanted).exists()
            ):
                missing.add((str(page.relative_to(ROOT)), quoted))
    assert not sorted(missing)


def test_tables_that_something_new_is_entered_in_exist():
    """The page that says where something new belongs names tables in capitals; each is a name of some module."""
    rows = (ROOT / "docs" / "README.md").read_text().partition("## Where something new belongs\n")[2]
    named = set(re.findall(r"`(?:\w+\.)*(_?[A-Z][A-Z_]+)`", rows))
    sources = "\n".join(text_of(path) for package in PACKAGES for path in (package.folder / "src").rglob("*.py"))
    assert len(named) > 10
    assert not {name for name in named if not re.search(rf"^ *{name}\b.* = ", sources, re.MULTILINE)}


def test_rules_of_fusion_that_pages_name_exist():
    """The scheduler's README lists the rules that the code has, and no page names another."""
    folder = NOXFILE.PACKAGES["scheduler"].folder
    modules = [*(folder / "src" / "ferrite_scheduler").glob("fusion/*.py")]
    numbers = set(re.findall(r'"([FNP]\d\d)"', "".join(map(text_of, modules))))
    assert numbers
    rows = [line for line in text_of(folder / "README.md").splitlines() if line.startswith("| ")]
    assert numbers == set(re.findall(r"\b[FNP]\d\d\b", "\n".join(row.split("|")[1] for row in rows)))
    other = re.compile(rf"\b(?!{'|'.join(sorted(numbers))})[FNP]\d\d\b")
    assert not [(page.name, each) for page in pages() for each in other.findall(said_of(page))]


BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = [path for path in sorted(BENCHMARKS.glob("[!_t]*/*.py")) if "__main__" in text_of(path)]


def commands_of(page: Path) -> set[tuple[str, str]]:
    """Returns ``(script, rest of the command)`` of the benchmarks that a page calls, in its text and in its blocks.

    Where benchmarks are the subject a page names them without their folder's folder.
    """
    said = said_of(page)
    is_about = BENCHMARKS in page.parents or page.parent == ROOT / "docs" / "decisions"
    quoted = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", said, flags=re.MULTILINE | re.DOTALL))
    called = re.compile(r"(?<![\w/])(benchmarks/)?((?:kernels|models|host)/\w+\.py)\b(.*)", re.DOTALL)
    found = [called.search(text) for text in (*quoted, *re.findall(r"^(?:python3? .*)$", said, re.MULTILINE))]
    named = (match for match in found if match and (match[1] or (is_about and (BENCHMARKS / match[2]).is_file())))
    return {(match[2], match[3]) for match in named}


def options_of(script: Path) -> set[str]:
    """Returns the options that a script names anywhere, or the module of tools that it takes its parser from."""
    tree = ast.parse(text_of(script))
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = {value for value in constants if isinstance(value, str) and value.startswith("--")}
    shared = (
        BENCHMARKS.parent / f"{node.module.replace('.', '/')}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and "parser_of" in {name.name for name in node.names}
    )
    return found.union(*map(options_of, shared))


def test_benchmarks_that_pages_call_take_these_options():
    missing = set()
    for page in pages():
        for name, rest in commands_of(page):
            script = BENCHMARKS / name
            given = set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest))
            known = options_of(script) if script.is_file() else set()
            if not script.is_file() or given - known:
                missing.add((page.name, name, *sorted(given - known)))
    assert not sorted(missing)


def test_thresholds_that_pages_set_are_fields_of_the_policy():
    model = NOXFILE.PACKAGES["scheduler"].folder / "src" / "ferrite_scheduler" / "model" / "policy.py"
    (policy,) = (node for node in ast.parse(text_of(model)).body if getattr(node, "name", "") == "Policy")
    fields = {node.target.id for node in policy.body if isinstance(node, ast.AnnAssign)}
    given = re.compile(r"""--policy '\{"(\w+)": (?!value)""")
    named = {(page.name, name) for page in pages() for name in given.findall(said_of(page))}
    assert named
    assert not {(page, name) for page, name in named if name not in fields}


def test_the_page_about_benchmarks_lists_all_of_them():
    listed = {name for name, _ in commands_of(BENCHMARKS / "README.md")}
    assert not {str(path.relative_to(BENCHMARKS)) for path in SCRIPTS} - listed


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_benchmarks_start_from_a_checkout(script: Path, tmp_path: Path):
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "--help"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "usage:" in ended.stdout


def test_decisions_are_numbered_and_listed():
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    index = (folder / "README.md").read_text()
    assert not [name for name in pages if f"({name})" not in index]


PAGE = 5000
"""Characters of a decision: about a printed page."""


def test_a_decision_is_a_page_with_four_parts():
    """Context, choice, consequences and alternatives; or the one line that names the record that it was merged into."""
    wrong = {}
    for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        text = text_of(page)
        parts = re.findall(r"^(?:## |\*\*)(Context|Choice|Consequences|Alternatives)\b", text, re.MULTILINE)
        merged = re.search(r"^Merged into \[\d{4}\]\(\d{4}-[\w-]+\.md\)\.$", text, re.MULTILINE)
        if len(text) > PAGE or (parts != ["Context", "Choice", "Consequences", "Alternatives"] and not merged):
            wrong[page.name] = len(text), parts
    assert not wrong


# The README and continuous integration


def test_ci_runs_the_readme_test_command():
    last = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    commands = re.findall(r"^```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert last in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def marked_examples() -> dict[str, str]:
    """Returns the programs that pages say are run here, by the page."""
    marked = re.compile(r"<!-- [^>]*test_repository[^>]* -->\s*```python\n(.*?)```", re.DOTALL)
    found = ((page, marked.search(text_of(page))) for page in pages())
    return {page.relative_to(ROOT).as_posix(): match[1] for page, match in found if match is not None}


EXAMPLES = marked_examples()


def test_readme_example_is_ten_lines():
    assert len([line for line in EXAMPLES["README.md"].splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("page", EXAMPLES)
def test_an_example_runs(page, tmp_path):
    """It runs as a program of its own, from a file as torch.compile wants it."""
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[page])
    sources = os.pathsep.join(str(package.folder / "src") for package in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": sources, "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr
