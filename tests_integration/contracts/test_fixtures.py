"""The fixture specs, read by the runtime: what these files say is what the format page promises to both sides.

`kernel_*.json` are kernel specs, `program_*.json` whole programs. A writer of the format checks that it writes files
like these; the runtime checks here that it reads, runs and compiles them. To change one is to change the format.
"""

import json
from pathlib import Path

import pytest

from ferrite_runtime import Kernel, KernelSpec, Options, Program, cross_compile, load_program
from ferrite_runtime.compilation.cross_compilation import cross_compile_kernels
from ferrite_runtime.devices.descriptors import known_devices

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent
KERNELS = sorted(FOLDER.glob("kernel_*.json"))
PROGRAMS = sorted(FOLDER.glob("program_*.json"))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def kernel(name: str) -> Kernel:
    return Kernel(read(FOLDER / f"kernel_{name}.json"))


@pytest.fixture(autouse=True)
def private_store(tmp_path, monkeypatch):
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernel_is_read_and_written_back(path: Path):
    mapping = read(path)
    assert KernelSpec.from_mapping(mapping).to_mapping() == mapping


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_is_read_and_written_back(path: Path):
    mapping = read(path)
    assert Program.from_mapping(mapping).to_mapping() == mapping


def test_all_compile_for_a_gpu():
    kernels = [KernelSpec.from_mapping(read(path)) for path in KERNELS]
    device = known_devices()["h200"]
    report = cross_compile_kernels(kernels, device.target, Options(tune="none", workers=1), device)
    assert report.is_complete, str(report)
    for path in PROGRAMS:
        assert cross_compile(read(path), "sm_90", options=Options(tune="none", workers=1)).is_complete


def test_gelu():
    x, out = torch.randn(4096).bfloat16(), torch.empty(4096, dtype=torch.bfloat16)
    kernel("gelu_tanh")(x, out)
    torch.testing.assert_close(out, torch.nn.functional.gelu(x, approximate="tanh"))


def test_softmax():
    x, out = torch.randn(32, 1000), torch.empty(32, 1000)
    kernel("row_softmax")(x, out)
    torch.testing.assert_close(out, x.softmax(1))


def test_sum():
    x, out = torch.randn(64, 5000), torch.empty(64)
    kernel("row_sum")(x, out)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-5, atol=1e-4)


def test_scaled():
    x, out = torch.randn(300), torch.empty(300)
    kernel("scaled")(x, out, 300, 0.5)
    assert torch.equal(out, x * 0.5)


def test_mlp():
    x, w, b = torch.randn(32, 8), torch.randn(8, 16), torch.randn(16)
    y, flat, number, nothing = load_program(read(FOLDER / "program_mlp.json"))(x, w, b)
    torch.testing.assert_close(y, (x @ w + b).relu())
    assert flat.data_ptr() == y.data_ptr()
    assert (flat.shape, number, nothing) == ((512,), 512, None)
