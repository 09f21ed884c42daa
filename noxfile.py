"""Everything a contributor runs; `nox -l` lists it, one package table drives it.

Sessions use the interpreter that nox runs under; for another one: `python3.12 -m nox --envdir .nox-3.12 -s tests`.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "imports", "types", "unit"]

ROOT = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of the tree: what it stands on and what it must do without."""

    key: str
    needs: tuple[str, ...]  # from the registry, at run time
    siblings: tuple[str, ...]  # keys of the packages it imports; their wheels come from this tree
    forbidden: tuple[str, ...]  # modules that must be neither installed nor imported beside it
    extras: tuple[str, ...] = ()  # its optional parts, all of which its tests exercise

    @property
    def name(self) -> str:
        """The name of the distribution and of its folder."""
        return f"ferrite-{self.key}"

    @property
    def import_name(self) -> str:
        """The name of the Python package."""
        return f"ferrite_{self.key}"

    @property
    def folder(self) -> Path:
        """Where the package lies in this tree."""
        return ROOT / "packages" / self.name


PACKAGES = {
    package.key: package
    for package in (
        Package(
            "ir",
            needs=("sympy", "mpmath"),
            siblings=(),
            forbidden=(
                "torch",
                "triton",
                "numpy",
                "ferrite_scheduler",
                "ferrite_triton",
                "ferrite_runtime",
                "ferrite_torch",
            ),
        ),
        Package(
            "scheduler",
            needs=(),
            siblings=("ir",),
            forbidden=("torch", "triton", "numpy", "ferrite_triton", "ferrite_runtime", "ferrite_torch"),
        ),
        Package(
            "triton",
            needs=(),
            siblings=("ir", "scheduler"),
            forbidden=("torch", "triton", "numpy", "ferrite_runtime", "ferrite_torch"),
        ),
        Package(
            "runtime",
            needs=(),
            siblings=(),
            forbidden=("ferrite_ir", "ferrite_scheduler", "ferrite_triton", "ferrite_torch"),
            extras=("torch", "triton", "interpreter", "plot", "redis"),
        ),
        Package(
            "torch",
            needs=("torch",),
            siblings=("ir", "scheduler", "triton", "runtime"),
            forbidden=(),  # torch._inductor is kept out by the lint: torch loads parts of it by itself
        ),
    )
}

CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True, slots=True)
class Torch:
    """A version of torch that is supported, with the version of Triton that its wheels for GPUs ask for."""

    torch: str
    triton: str

    @property
    def name(self) -> str:
        """The version as users say it, without the last number."""
        return self.torch.rpartition(".")[0]


TORCHES = (
    Torch("2.11.0", triton="3.6.0"),
    Torch("2.12.1", triton="3.7.1"),
    Torch("2.13.0", triton="3.7.1"),
    Torch("2.14.1", triton="3.8.0"),
    Torch("2.15.0", triton="3.9.0"),
)
"""What `matrix` takes in place of the pins of constraints.txt for these two; every other pin holds."""

TEST_TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "fakeredis")
# The root settings hold for every package, whatever a package says for those who test it from its own folder.
PYTEST = ("-c", str(ROOT / "pyproject.toml"), "-n", "auto", "--dist", "worksteal", "--timeout", "600")
INTEGRATION_NEEDS = ("transformers", "nox")  # nox: test_repository.py reads this table
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the test processes already fill the cores

SAMPLE = (
    *("semantics", "pipeline", "models", "contracts", "dynamic/test_chunks.py", "dynamic/test_generate.py"),
    *("dynamic/test_numbers.py", "dynamic/test_run_time_sizes.py", "opinfo/test_operators.py", "fuzz"),
)
"""The integration tests that `matrix` runs: those that depend on what torch hands over."""

each_package = nox.parametrize("package", list(PACKAGES.values()), ids=list(PACKAGES))
each_torch = nox.parametrize("torch", list(TORCHES), ids=[each.name for each in TORCHES])


def install(session: nox.Session, *requirements: str, constraints: Path = CONSTRAINTS) -> None:
    """Installs requirements at the versions that a file pins, constraints.txt if none is named."""
    session.install("--constraint", str(constraints), *requirements)


def install_tree(session: nox.Session, constraints: Path = CONSTRAINTS) -> None:
    """Installs the packages, editable, with all their optional parts, and what tests them."""
    install(session, *TEST_TOOLS, *INTEGRATION_NEEDS, "hatchling", "editables", constraints=constraints)
    editable = [flag for each in PACKAGES.values() for flag in ("--editable", with_extras(str(each.folder), each))]
    install(session, "--no-build-isolation", *editable, constraints=constraints)


def constraints_with(torch: Torch) -> str:
    """Returns the pins of constraints.txt with a version of torch and its Triton in place of the usual ones."""
    lines = CONSTRAINTS.read_text().splitlines()
    others = [line for line in lines if line.partition("==")[0] not in ("torch", "triton")]
    return "\n".join([*others, f"torch=={torch.torch}", f"triton=={torch.triton}", ""])


def with_extras(place: str, package: Package) -> str:
    """Returns the requirement that installs a package from a place with all its optional parts."""
    return f"{place}[{','.join(package.extras)}]" if package.extras else place


def wheels_folder(session: nox.Session) -> Path:
    """Returns the folder that `build` fills."""
    return session.cache_dir.resolve() / "wheels"


def wheel_of(session: nox.Session, package: Package) -> Path:
    """Returns the wheel that `build` made of a package."""
    return next(wheels_folder(session).glob(f"{package.import_name}-*.whl"))


def dev_python(session: nox.Session) -> str:
    """Returns the interpreter of the shared environment that `dev` keeps."""
    home = session.cache_dir.resolve().parent / "dev"
    return str(home / "Scripts" / "python.exe" if (home / "Scripts").is_dir() else home / "bin" / "python")


def run_in_dev(session: nox.Session, *command: str) -> None:
    """Runs a command of the shared environment."""
    session.run(dev_python(session), *command, external=True, env=SINGLE_THREADED)


@nox.session(reuse_venv=True)
def dev(session: nox.Session) -> None:
    """Keeps the shared environment: the five packages, editable, and all they are tested with."""
    manifests = [CONSTRAINTS, *(package.folder / "pyproject.toml" for package in PACKAGES.values())]
    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in (Path(__file__), *manifests))).hexdigest()
    stamp = Path(session.virtualenv.location) / "ferrite-recipe.txt"
    if stamp.exists() and stamp.read_text() == recipe:
        session.log("up to date")
        return
    install_tree(session)
    install(session, "mypy")
    stamp.write_text(recipe)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Checks style and format with ruff; `-- --fix` mends what can be mended."""
    install(session, "ruff")
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--diff"]), ".")


@nox.session(reuse_venv=True)
def imports(session: nox.Session) -> None:
    """Checks the import contracts of pyproject.toml: layers, forbidden modules, no cycles."""
    install(session, "import-linter")
    sources = ":".join(str(package.folder / "src") for package in PACKAGES.values())
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": sources})


@nox.session(venv_backend="none", requires=["dev"])
def types(session: nox.Session) -> None:
    """Checks types, strictly, of every package (or of `-- ir scheduler`)."""
    chosen = session.posargs or list(PACKAGES)
    flags = [flag for key in chosen for flag in ("--package", PACKAGES[key].import_name)]
    run_in_dev(session, "-m", "mypy", "--strict", *flags)


@nox.session(venv_backend="none", requires=["dev"])
@each_package
def unit(session: nox.Session, package: Package) -> None:
    """Runs one package's tests in the shared environment: the quick loop."""
    run_in_dev(session, "-m", "pytest", *PYTEST, str(package.folder / "tests"), *session.posargs)


@nox.session(reuse_venv=True)
@each_torch
def matrix(session: nox.Session, torch: Torch) -> None:
    """Runs each package's tests, and a sample of those of several packages, with one supported version of torch.

    It is no part of `tests`: it installs a torch of its own, and takes as long as they do. What else pytest should know
    comes after ``--``; folders and files named there are run in place of all others.
    """
    constraints = Path(session.create_tmp()) / f"constraints-{torch.name}.txt"
    constraints.write_text(constraints_with(torch))
    install_tree(session, constraints)
    found = "import sys, torch, triton; print('Python', sys.version.split()[0], torch.__version__, triton.__version__)"
    session.run("python", "-c", found)
    chosen = [each for each in session.posargs if (ROOT / each.partition("::")[0]).exists()]
    flags = [each for each in session.posargs if each not in chosen]
    sample = [f"tests_integration/{each}" for each in SAMPLE]
    folders = chosen or [*(str(package.folder / "tests") for package in PACKAGES.values()), *sample]
    session.run("python", "-m", "pytest", *PYTEST, *folders, *flags, env=SINGLE_THREADED)


@nox.session(reuse_venv=True)
def build(session: nox.Session) -> None:
    """Builds the wheel of every package."""
    install(session, "hatchling")
    wheels = wheels_folder(session)
    shutil.rmtree(wheels, ignore_errors=True)
    for package in PACKAGES.values():
        with session.chdir(package.folder):
            session.run("hatchling", "build", "-t", "wheel", "-d", str(wheels))


@nox.session(requires=["build"], reuse_venv=False)
@each_package
def alone(session: nox.Session, package: Package) -> None:
    """Installs one package's wheel into a bare environment, imports it all, runs its tests there."""
    # Siblings are named by file, so that a package of the same name in a registry is never taken for ours.
    below = [str(wheel_of(session, PACKAGES[key])) for key in package.siblings]
    install(session, *below, with_extras(str(wheel_of(session, package)), package))
    session.run("python", "-I", ".ci/import_all.py", package.import_name, *package.forbidden)
    install(session, *TEST_TOOLS)
    # A pythonpath of the tests alone keeps the tree's sources out: what is tested is the installed wheel.
    tests = str(package.folder / "tests")
    settings = (*PYTEST, "-o", f"pythonpath={tests}")
    session.run("python", "-m", "pytest", *settings, tests, *session.posargs, env=SINGLE_THREADED)


@nox.session(requires=["build"], reuse_venv=False)
def bare(session: nox.Session) -> None:
    """Installs the runtime's wheel and nothing else, and reads, checks, plans and refuses bundles with it.

    What an import costs there is printed, and bounded. That the bundle of its examples also runs there, in the
    interpreter, is a test of `alone(runtime)`, which adds torch, Triton and NumPy.
    """
    package = PACKAGES["runtime"]
    install(session, str(wheel_of(session, package)))
    absent = ("torch", "triton", "numpy", *package.forbidden)
    session.run("python", "-I", "-c", f"import importlib.util as u; assert not [m for m in {absent} if u.find_spec(m)]")
    tests = package.folder / "tests"
    session.run("python", "-I", ".ci/time_import.py", package.import_name, "--limit-ms", "60")
    for bundle in ("example", "regression"):
        session.run("ferrite-runtime", "verify", str(tests / f"{bundle}.ferrite"))
    session.run("ferrite-runtime", "inspect", str(tests / "example.ferrite"))
    session.run("ferrite-runtime", "devices")
    install(session, *TEST_TOOLS)
    session.run(
        "python", "-m", "pytest", *PYTEST, "-o", f"pythonpath={tests}", str(tests / "bundles" / "test_bundle.py")
    )


@nox.session(venv_backend="none", requires=["dev"])
def demo(session: nox.Session) -> None:
    """Compiles and runs a small GPT and ResNet, and shows what became of them."""
    run_in_dev(session, "-m", "ferrite_torch.demo", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def integration(session: nox.Session) -> None:
    """Runs the tests that need several packages at once (those for a GPU skip where there is none), but the slow ones.

    Then it compiles for sm_90, of the kernels that any of them emitted, one of eight of each form, and a dozen at
    least; of templates that differ in numbers alone, two.
    """
    test_and_compile(session, "-m", "not slow", one_of=8)


@nox.session(venv_backend="none", requires=["dev"])
def thorough(session: nox.Session) -> None:
    """Runs what `integration` leaves out: the slow tests too, and all kernels are compiled. It takes an hour."""
    test_and_compile(session, one_of=1)


def emitted_folder(session: nox.Session) -> Path:
    """Returns the folder of the kernels that tests emitted."""
    return session.cache_dir.resolve() / "emitted"


@nox.session(requires=["build", "integration"])
def oldest_triton(session: nox.Session) -> None:
    """Compiles for sm_90 a sample of what `integration` emitted, with the oldest Triton that is supported.

    It refuses some of what newer ones take: a hint of more neighbours than a tile has, for one.
    """
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text(constraints_with(TORCHES[0]))
    install(session, str(wheel_of(session, PACKAGES["runtime"])), "triton", constraints=constraints)
    compiled = (str(emitted_folder(session)), "--target", "sm_90", "--one-of", "32")
    session.run("python", "tests_integration/compile_emitted.py", *compiled)


def test_and_compile(session: nox.Session, *flags: str, one_of: int) -> None:
    """Runs the integration tests, and compiles so many of the kernels that they emit."""
    emitted = emitted_folder(session)
    shutil.rmtree(emitted, ignore_errors=True)
    tests = ("--emitted", str(emitted), "tests_integration", *flags, *session.posargs)
    run_in_dev(session, "-m", "pytest", *PYTEST, *tests)
    compiled = (str(emitted), "--target", "sm_90", "--one-of", str(one_of))
    run_in_dev(session, "tests_integration/compile_emitted.py", *compiled)


@nox.session(venv_backend="none", requires=["dev"])
def opinfo(session: nox.Session) -> None:
    """Checks every operator of torch's database once, in the interpreter; a part of `integration`."""
    run_in_dev(session, "-m", "pytest", *PYTEST, "tests_integration/opinfo", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def fuzz(session: nox.Session) -> None:
    """Runs random programs against eager, in the interpreter; a part of `integration`."""
    run_in_dev(session, "-m", "pytest", *PYTEST, "tests_integration/fuzz", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def stress(session: nox.Session) -> None:
    """Lets 16 processes share a store for five minutes, kills three of them, and checks what is left; both forms."""
    for form in ("sqlite", "packs"):
        script = PACKAGES["runtime"].folder / "tests" / "store_stress.py"
        run_in_dev(session, str(script), "--form", form, *session.posargs)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Runs the GPU suite with the torch of the current environment, and fails without a GPU; installs nothing."""
    folders = ("tests_integration", "packages/ferrite-runtime/tests", "packages/ferrite-torch/tests")
    needed = {"FERRITE_TESTS_NEED_GPU": "1"}
    session.run("python3", "-m", "pytest", "-m", "gpu", *folders, *session.posargs, external=True, env=needed)


@nox.session(
    venv_backend="none",
    requires=[
        *("lint", "imports", "types", *(f"alone({key})" for key in PACKAGES), "bare", "demo", "integration"),
        "oldest_triton",
    ],
)
def tests(session: nox.Session) -> None:
    """Stands for all that a contributor must pass; the sessions it requires do the work."""
    session.log("all of it passed")
