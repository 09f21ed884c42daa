"""The tree as a reader finds it: lengths of files, sizes of folders, the words of the field, names that no file has."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository_files import PACKAGES, ROOT, text_of, tracked_files

THIS_FILE = Path(__file__).resolve()


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Returns file:line: text of every line that matches, this file's own patterns left out."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        if path != THIS_FILE
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def modules() -> list[Path]:
    """Returns all Python files: of packages, their tests, the integration tests and the benchmarks."""
    return [path for path in tracked_files() if path.suffix == ".py"]


def test_inductor_is_named_in_code_only_by_the_benchmarks():
    """The lint knows import statements; this also finds names given to importlib, patched or written into strings."""
    code = [path for path in modules() if path.parts[len(ROOT.parts)] != "benchmarks"]
    loads = re.compile(r"""(import|from|["'])\s*torch\._inductor""")
    assert not lines_with(loads, code)


def test_no_file_knows_the_machine_it_was_written_on():
    private_path = re.compile(r"(?<![\w.$}>)-])/(home|root|opt|work|mnt|Users|private)/\w")
    assert not lines_with(private_path, tracked_files())


def test_no_file_is_tied_to_a_package_registry():
    registry = re.compile(r"(pypi\.org|pythonhosted|--index-url|--extra-index-url|PIP_INDEX|download\.pytorch)")
    assert not lines_with(registry, tracked_files())


def test_no_module_is_a_drawer():
    drawers = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    assert not [path for path in tracked_files() if path.name in drawers]


LONG_FILES = {
    "packages/ferrite-runtime/src/ferrite_runtime/fmath/tables.py": "numbers",
    "tests_integration/opinfo/refused_calls.py": "a table of calls, by kind",
    "tests_integration/opinfo/refused/values.py": "a table of calls, by kind",
    "tests_integration/pipeline/op_cases.py": "a table of calls, by family of ops",
}
"""Files of more than 500 lines, and why that is no harm: they are data."""

LONG_FUNCTIONS = {
    "packages/ferrite-runtime/src/ferrite_runtime/fmath/row_bins.py:bin_rows": (
        "a kernel of 23 parameters, each with a line"
    ),
    "packages/ferrite-runtime/src/ferrite_runtime/fmath/segmented_reductions.py:reduce_segments": (
        "a kernel of 22 parameters, each with a line"
    ),
}
"""The same of functions of more than 60 lines."""


def is_one_table(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns whether a function returns one display, behind its docstring and a few names for what is in it."""
    last = function.body[-1]
    named = function.body[:-1]
    return (
        isinstance(last, ast.Return)
        and isinstance(last.value, (ast.Dict, ast.List, ast.Tuple))
        and all(isinstance(each, (ast.Assign, ast.Expr, ast.FunctionDef)) for each in named)
        and last.lineno - function.lineno < 20
    )


def test_a_module_and_a_function_are_read_at_once():
    """Modules have 500 lines at most, functions 60, their docstrings included; tables may be longer."""
    files, functions = set(), set()
    for path in modules():
        name, text = path.relative_to(ROOT).as_posix(), text_of(path)
        if text.count("\n") > 500:
            files.add(name)
        for node in ast.walk(ast.parse(text)):
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and node.end_lineno - node.lineno >= 60 and not is_one_table(node):
                functions.add(f"{name}:{node.name}")
    assert files == LONG_FILES.keys()
    assert functions == LONG_FUNCTIONS.keys()


def source_folders() -> list[Path]:
    """Returns the folders with Python sources of all packages, the packages' own included."""
    sources = [path for package in PACKAGES for path in (package.folder / "src" / package.import_name).rglob("*.py")]
    return sorted({path.parent for path in sources})


def test_a_folder_holds_two_dozen_modules_at_most():
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules())
    assert not {folder: count for folder, count in counts.items() if count > 24}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.key)
def test_a_folder_says_what_comes_in_and_what_goes_out(package):
    root = package.folder / "src" / package.import_name
    inside = [folder for folder in source_folders() if root in folder.parents]
    pages = {folder.relative_to(root): ast.parse(text_of(folder / "__init__.py")) for folder in inside}
    assert not [folder for folder, page in pages.items() if len((ast.get_docstring(page) or "").splitlines()) < 3]


NO_THRESHOLDS = {
    "a type's own numbers": (
        "casts.LARGEST_F8E4M3FN", "user_launches._LARGEST_I32", "literals._SMALLEST_NORMAL", "literals._LARGEST",
        "searching.MOST_NARROW", "described_blocks.MOST_POSITIONS",
        "resampling._LARGEST_AXIS", "indices.LARGEST_FACTOR", "epilogues.MOST_ELEMENTS",
    ),
    "right up to here, by a proof beside it": (
        "symbolic_sizes.MOST_PARTS", "resampling._LARGEST_DENOMINATOR", "attention_weights.LEAST",
        "attention_weights.MOST", "segmented_reductions.MOST_DESTINATIONS", "searching.MOST_HALVINGS",
    ),
    "of hardware, of Triton, or of a driver": (
        "contractions.LEAST_EXTENT", "blocks.LEAST_EXTENT", "resources.MAX_THREADS", "shape.MAX_TILE",
        "native_products._MAX_DIMS",
    ),
    "what kernels are written for": (
        "segments.MOST_SHARE", "segments.MOST_ROWS", "grid_reductions.SMALLEST",
        "grid_reductions.SMALLEST_OF_COLUMNS", "native_sequence.MAX_VALUES", "native_sequence.MAX_LAUNCHES",
    ),
    "of texts, formats, messages and tests": (
        "printer.MAX_DEPTH", "printer.MAX_WIDTH", "expression_parser.MAX_NESTING", "evaluator.MAX_ITERATIONS",
        "kernel_names.LONGEST", "boundaries.KEPT", "mixed_combos.MOST_NOTES", "mixed_combos.MOST_TERMS",
        "statistics.KEPT_PROGRAMS", "dtypes.MOST", "embeddings.MAX", "interpreted.MAX_REDUCTION",
    ),
    "when to give a measurement up": ("timing.MOST_READINGS",),
}  # fmt: skip
"""Limits in constants of modules that decide neither what is fast nor what becomes a kernel, by what they are of."""


ARITHMETIC = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)


def constants_of(path: Path) -> Iterator[str]:
    """Yields the names of a module's constants that are numbers written out."""
    for node in ast.parse(text_of(path)).body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = [*zip(names, values, strict=True)]
            case ast.Assign(targets=[name], value=value) | ast.AnnAssign(target=name, value=value) if value is not None:
                pairs = [(name, value)]
            case _:
                continue
        for name, value in pairs:
            parts = list(ast.walk(value))
            numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
            is_number = all(isinstance(part, ARITHMETIC) for part in parts) and {*map(type, numbers)} <= {int, float}
            if is_number and isinstance(name, ast.Name):
                yield name.id


def test_thresholds_stand_in_records() -> None:
    """What decides speed or form is a field with unit, default and source: of `Policy` or a record of thresholds."""
    sources = [path for path in modules() if "src" in path.parts and path.name != "thresholds.py"]
    deciding = ("policies", "kernel_forms", "engines", "host", "tuning")
    limit = re.compile(r"_?(MOST|LEAST|LONGEST|SHORTEST|WIDEST|SMALLEST|LARGEST|DEEPEST|FEWEST|MAX|MIN|KEPT)(_|$)")
    found = {
        f"{path.stem}.{name}"
        for path in sources
        if "ferrite_runtime" not in path.parts or path.parent.name in deciding
        for name in constants_of(path)
        if limit.match(name)
    }
    assert found == {name for names in NO_THRESHOLDS.values() for name in names}


OF_TORCH = {"load_cache_artifacts", "run_and_save_rng_state"}
"""Names that docstrings quote and that no code here names."""


def names_in(path: Path) -> set[str]:
    """Returns the names in the code of a module, and the words of its short strings, which may name something."""
    found = {path.stem, *path.parts}
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING and len(token.string) < 80:
            found.update(re.findall(r"\w+", token.string))
    return found


def test_names_that_docstrings_quote_exist() -> None:
    """A name in single backquotes is one of the code: of a function, a class, an argument, a field, a module."""
    known = OF_TORCH.union(*map(names_in, modules()))
    quoted = re.compile(r"(?<!`)`(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)`(?!`)")
    assert not {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        if "src" in path.parts
        for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
        for name in quoted.findall(token.string)
        if name not in known
    }


def code_generator() -> list[Path]:
    return [path for path in modules() if "ferrite_triton" in path.parts]


def test_triton_is_spelled_by_six_modules_at_most():
    """Docstrings may show text of kernels; what writes it is in the printer."""
    spelling = set()
    for path in code_generator():
        tree = ast.parse(text_of(path))
        shown = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in shown)
        if any(isinstance(node.value, str) and re.search(r"\btl\.", node.value) for node in texts):
            spelling.add(path)
    assert {path.parent.name for path in spelling} == {"printing"}
    assert len(spelling) <= 6


def test_the_code_generator_applies_no_regular_expression():
    assert not lines_with(re.compile(r"^\s*(import re\b|from re import)"), code_generator())


RETIRED = {
    r"\b[Ff]old axis|\bFold\b": "reduction",
    r"held (images|groups)|hold images": "register-resident group norm",
    r"meeting_in_warp": "warp match or vote",
    r"\bMEETINGS\b|(sizes|what) that comes? again|[Rr]ecurring sizes": "shape-specialisation cache",
    r"kernels that follow|fmath\.follow": "programmatic dependent launch",
    r"ask(ing|ed) ahead|read_ahead": "software prefetch",
    r"part_in_order|draw_part": "block ticket, in-order block scheduling",
    r"as_it_came|(wait|hold|held)\w*( \w+)? as they came|fmath\.hide\b": "opaque value, packed register residency",
    r"short_runs": "contiguous inner axis",
    r"combined rows|row lists": "segmented reduction",
    r"sorted updates": "sort-based scatter",
    r"rows (that )?meet\b": "index collisions",
    r"either form\b": "multi-versioned kernels",
    r"\bstrewn\b": "non-coalesced",
    r"turn_around": "reverse traversal for L2 reuse",
    r"last reads|leaves the cache first": "last use, evict-first hint",
    r"\brid(e|es|ing) (with|along)": "partial column reduction fused into a row kernel",
    r"repeat statistics": "recomputed normalisation prologue",
    r"\bexact parts": "split-precision products",
    r"\bpostponement": "deferred release",
    r"\b(HEAVIER|heavier)\b": "large-size fallback",
    r"\b(a|only a) run (tells|knows)|(a|only_a)_run_tells|told by a run\b": "data-dependent size",
    r"share of the floor": "share of the bound (roofline)",
    r"library call\b": "extern call",
    r"\btaken apart\b": "decomposed",
    r"\bwritten[ _]out\b|WRITTEN_OUT": "unrolled",
    r"\b[Ll]aws? (of|on)\b": "property, invariant",
    r"\btaste\b": "profitability",
}  # fmt: skip
"""Words that things had before they got the field's, and those: what is known by another name is not found."""


@pytest.mark.parametrize("word", RETIRED)
def test_things_have_the_words_of_the_field(word):
    """The glossary explains some of these; changelogs quote what they renamed."""
    said = [path for path in tracked_files() if path.suffix in (".py", ".md", ".fir", ".tile")]
    said = [path for path in said if path.name != "glossary.md"]
    found = [line for line in lines_with(re.compile(word), said) if not re.search(rf"CHANGELOG.*`[^`]*({word})", line)]
    assert not found, f"write: {RETIRED[word]}"
