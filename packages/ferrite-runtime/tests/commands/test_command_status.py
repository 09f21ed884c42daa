"""What every command makes of every kind of file: its status, and what it says to people and to programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundle_cases import add_bundle
from ferrite_runtime import __version__
from ferrite_runtime.__main__ import COMMANDS, main
from ferrite_runtime.formats.target import KNOWN_TARGETS
from ferrite_runtime.process.option_ranges import did_you_mean
from runtime_kernels import one_kernel, pointwise

FILES = ("missing", "folder", "empty", "text", "binary", "bundle", "spec", "program", "damaged")
# Of each command: what stands before and behind the file, and the status for a sound bundle, spec and program.
READERS: dict[str, tuple[list[str], list[str], int]] = {
    "inspect": (["inspect"], [], 0),
    "verify": (["verify"], [], 0),
    "check": (["check"], [], 0),
    "show": (["show"], [], 0),
    "compile": (["compile"], ["--workers", "0"], 0),
    "why-miss": (["cache", "why-miss"], ["--device", "h200"], 1),
    "pin": (["pin", "--program"], ["--file", "pins.json", "--check"], 1),
    "import": (["cache", "import"], [], 1),
    # No GPU here is the command's own trouble.
    "tune": (["tune"], ["--quiet", "--workers", "0"], 2),
    "bench": (["bench"], ["--workers", "0"], 2),
}
EXPECTED = {"missing": 2, "folder": 2, "empty": 1, "text": 1, "binary": 1, "damaged": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    bundle = add_bundle().to_bytes()
    contents = {
        "empty": b"",
        "text": b"a few words\n",
        "binary": b"\x7fELF\xff\xfe",
        "bundle": bundle,
        "spec": json.dumps(pointwise("a + 1")).encode(),
        "program": json.dumps(one_kernel(pointwise("a + 1"))).encode(),
        "damaged": bundle[:-9] + b"X" + bundle[-8:],
    }
    for name, content in contents.items():
        (root / name.replace("damaged", "broken")).write_bytes(content)
    (root / "folder").mkdir()
    return {name: root / name.replace("damaged", "broken") for name in FILES}


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def has_gpu() -> bool:
    torch = pytest.importorskip("torch")
    return bool(torch.cuda.is_available())


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", READERS)
def test_status_and_words(command: str, file: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, behind, sound = READERS[command]
    is_sound = file not in EXPECTED
    if command in ("tune", "bench") and is_sound and has_gpu():
        pytest.skip("measures on a GPU")
    if command == "compile" and is_sound:
        pytest.importorskip("triton")
    wanted = sound if is_sound else EXPECTED[file]
    if command == "import" and file == "empty":
        wanted = 0  # an export of nothing
    arguments = [*before, str(files[file]), *behind]
    assert main(arguments) == wanted
    said = capsys.readouterr()
    if wanted == 2 or not is_sound:
        assert is_sound or str(files[file]) in said.err + said.out
        assert ("damaged" in said.err) == (file == "damaged" and command != "import")
    assert main([*arguments, "--json"]) == wanted
    value = json.loads(capsys.readouterr().out)
    if said.err.startswith("error:"):
        assert value["error"]["status"] == wanted
        assert value["error"]["message"] in said.err
        assert value["error"]["hint"] in said.err
        assert value["error"]["kind"].isidentifier()
    else:
        assert "error" not in value


@pytest.mark.parametrize("command", READERS)
def test_pipes_are_not_waited_for(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    before, behind, _ = READERS[command]
    assert main([*before, str(tmp_path / "pipe"), *behind]) == 2
    assert "pipe cannot be read: it is no file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "show", "check"])
def test_terminals_of_ascii_and_full_disks_have_no_traceback(command: str, files: dict[str, Path]) -> None:
    run = [sys.executable, "-m", "ferrite_runtime", command, str(files["bundle"])]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(run, env={**os.environ, **ascii_only}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if Path("/dev/full").is_char_device():
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert "the output cannot be written" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("closed", "file", "status"), [(">&-", "bundle", 0), ("2>&-", "nothing", 2)])
def test_output_that_is_closed_from_the_start_is_no_error(
    closed: str, file: str, status: int, files: dict[str, Path]
) -> None:
    path = files.get(file, Path("nothing"))
    run = ["bash", "-c", f'"$0" -m ferrite_runtime check "$1" {closed}', sys.executable, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("command", [*READERS, "pins"])
def test_paths_that_no_file_has_are_no_trouble_with_the_output(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, behind, _ = READERS.get(command, (["pin", "--check", "--dir", str(tmp_path), "--file"], [], 0))
    assert main([*before, "/" + "a" * 5000, *behind, "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["kind"] == "FileUnreadable"
    assert "cannot be read: File name too long" in said.err


def test_pins_that_are_not_there_would_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["pin", "--dir", str(tmp_path), "--file", str(tmp_path / "pins.json")]
    assert main([*given, "--check"]) == 1
    assert main(given) == 0
    assert main([*given, "--check"]) == 0


def test_pins_in_a_pipe_are_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["pin", "--file", str(tmp_path / "pipe"), "--check"]) == 2
    assert "it is no file" in capsys.readouterr().err


def test_what_was_probably_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert did_you_mean("CUDA_GRAPH", ("tune", "cuda_graph")) == "; did you mean 'cuda_graph'?"
    assert main(["inspcet", "x"]) == 2
    assert "did you mean 'inspect'?" in capsys.readouterr().err
    assert main(["cache", "why-mis"]) == 2
    assert "did you mean 'why-miss'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sm_12", "sm_9", "sm90", "gfx94", "", "cpu"])
def test_unknown_target_is_refused_before_anything_is_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "missing", "--target", name]) == 2
    said = capsys.readouterr().err
    assert repr(name) in said
    assert ", ".join(KNOWN_TARGETS) in said
    assert "missing" not in said
    if name == "sm90":
        assert "did you mean 'sm_90'?" in said


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["verfy", "x"],
        ["check"],
        ["compile", "x", "--workers", "many"],
        ["cache"],
        ["cache", "stat", "--dir", "nowhere"],
        ["cache", "gc", "--limit", "much"],
        ["cache", "export", "nowhere/file"],
        ["compile", "x", "--workers", "-1"],
        ["tune", "x", "--seconds", "nan"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_have_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "error: " in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["status"] == 2


def test_every_command_takes_json_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [[name] for name in COMMANDS if name != "cache"]
    parts += [["cache", part] for part in ("stat", "verify", "gc", "export", "import", "why-miss")]
    for part in parts:
        with pytest.raises(SystemExit) as ended:
            main([*part, "--help"])
        assert ended.value.code == 0
        assert "--json" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ferrite-runtime {__version__}\n"


def test_closed_pipe_is_no_error(files: dict[str, Path]) -> None:
    """More is written than a pipe holds, to a reader that is gone."""
    code = (
        "import sys; from ferrite_runtime.__main__ import main\n"
        "from ferrite_runtime.commands import show\n"
        "show._print_kernel = lambda kernel: [print('x' * 1000) for _ in range(1000)]\n"
        f"sys.exit(main(['show', {str(files['bundle'])!r}]))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ferrite_runtime.commands import devices

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(devices, "present_devices", interrupted)
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == "ferrite-runtime: interrupted\n"


def test_a_bug_shows_where_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    from ferrite_runtime.commands import devices

    monkeypatch.setattr(devices, "present_devices", lambda: {}["nothing"])
    with pytest.raises(KeyError):
        main(["devices"])
