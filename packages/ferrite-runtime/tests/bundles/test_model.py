"""Loaded bundles: weights bound, calls guarded, programs run, binaries taken instead of compiled."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bundle_cases import EXAMPLE, REGRESSION, add_bundle, with_fake_binaries  # noqa: E402
from example_model import Example, Regression, example_inputs, regression_inputs  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    GuardFailed,
    NoVariantForTarget,
    OptionError,
    Options,
    PackageInvalid,
    WeightMissing,
    load,
    load_program,
)
from ferrite_runtime.bundles.prebuilt import BundleLibrary  # noqa: E402
from ferrite_runtime.compilation.triton_adapter import Job  # noqa: E402
from ferrite_runtime.errors import FileUnreadable  # noqa: E402
from ferrite_runtime.formats.config import Config  # noqa: E402
from ferrite_runtime.formats.target import Target  # noqa: E402
from ferrite_runtime.loading import loaded_bundle  # noqa: E402
from runtime_fakes import content_of  # noqa: E402

INTERPRET = Options(interpret=True)


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_example_computes_what_its_model_does() -> None:
    model = Example()
    args, kwargs = example_inputs()
    loaded = load(EXAMPLE, weights=model.state_dict(), options=INTERPRET)
    expected = model(*args, **kwargs)
    for _ in range(2):
        found = loaded(*args, **kwargs)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert found[name].stride() == value.stride()
            close(found[name], value.detach())


def test_a_bundle_is_shown_by_what_is_in_it() -> None:
    loaded = load(EXAMPLE, options=INTERPRET)
    assert repr(loaded) == "LoadedBundle('Example': main(2 tensors, 6 weights) -> 6 tensors)"
    assert repr(loaded.bundle).startswith("Bundle('Example': 1 entries, ")


def test_training_gives_the_gradients_and_statistics_of_eager() -> None:
    ours, theirs = Regression().train(), Regression().train()
    x, wanted = regression_inputs()
    state = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    loaded = load(REGRESSION, weights=state, options=INTERPRET)
    for _ in range(3):
        loss, found = loaded(x, wanted)
        expected_loss, expected = theirs(x, wanted)
        close(loss, expected_loss)
        close(found, expected)
        (loss + found.mean()).backward()
        (expected_loss + expected.mean()).backward()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)
            with torch.no_grad():
                mine.sub_(0.1 * mine.grad)
                other.sub_(0.1 * other.grad)
            mine.grad = other.grad = None
        for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            close(mine, other)


def test_backward_may_run_twice_and_gradients_may_lie_anyhow() -> None:
    model = Regression().train()
    x, wanted = regression_inputs()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    loss, found = load(REGRESSION, weights=state, options=INTERPRET)(x, wanted)
    first = torch.autograd.grad([loss, found], [model.inner.weight], [torch.ones(()), torch.ones(1).expand(32)], True)
    again = torch.autograd.grad([loss, found], [model.inner.weight], [torch.ones(()), torch.ones(32)])
    close(first[0], again[0])


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        (lambda t: (t.to(torch.int32),), {}, "args[0].dtype"),
        (lambda t: (t[:, :11],), {}, "args[0].shape"),
        (lambda t: (t.t().contiguous().t(),), {}, "args[0].strides"),
        (lambda t: (3,), {}, "args[0]"),
        (lambda t: (t, t), {}, "arguments"),
        (lambda t: (t,), {"gain": torch.ones(31)}, "gain.shape"),
        (lambda t: (t,), {"gian": torch.ones(32)}, "keywords"),
    ],
)
def test_call_that_was_not_exported_is_refused_by_name_every_time(args, kwargs, name: str) -> None:
    loaded = load(EXAMPLE, weights=Example().state_dict(), options=INTERPRET)
    (tokens,), right = example_inputs()
    loaded(tokens, **right)
    for _ in range(2):
        with pytest.raises(GuardFailed) as caught:
            loaded(*args(tokens), **{**right, **kwargs} if "gian" not in kwargs else kwargs)
        assert caught.value.name == name


def test_weights_are_checked() -> None:
    state = dict(Example().state_dict())
    args, kwargs = example_inputs()
    with pytest.raises(WeightMissing, match="has no weights yet"):
        load(EXAMPLE, options=INTERPRET)(*args, **kwargs)
    with pytest.raises(GuardFailed, match="'scale' of main is not among those given") as caught:
        load(EXAMPLE, weights={"words": state["words"]}, options=INTERPRET)
    assert caught.value.name == "scale"
    with pytest.raises(GuardFailed, match="has shape"):
        load(EXAMPLE, weights={**state, "scale": torch.ones(3)}, options=INTERPRET)


def test_digest_ties_a_bundle_to_what_was_meant() -> None:
    digest = Bundle.read(EXAMPLE).digest
    assert load(EXAMPLE, digest=digest).bundle.digest == digest
    with pytest.raises(PackageInvalid, match="is wanted"):
        load(EXAMPLE, digest="0" * 64)


def test_kernel_of_a_bundle_runs_alone() -> None:
    bundle = add_bundle()
    loaded = load(bundle, options=INTERPRET)
    a, b, c, out = (torch.randn(1000) for _ in range(4))
    loaded["pointwise"](a, b, c, out)
    close(out, a + b + c)
    assert loaded.names() == ("main", "pointwise")
    with pytest.raises(GuardFailed, match="has no 'nothing'; it has main, pointwise"):
        loaded["nothing"]


def test_variant_is_chosen_by_shape() -> None:
    small, large = add_bundle(size=8), add_bundle(size=16)
    entry = small.entries["main"]
    # Two programs, no weights: a sum with itself.
    variants = [
        replace(bundle.entries["main"].variants[0], forward=f"v{n}", takes=(("tensor", 0),) * 3)
        for n, bundle in enumerate((small, large))
    ]
    merged = Bundle(
        "two",
        {**small.kernels, **large.kernels},
        {"v0": small.programs["main.inference"], "v1": large.programs["main.inference"]},
        {"main": replace(entry, weights=(), variants=tuple(variants))},
    )
    loaded = load(Bundle.from_bytes(merged.to_bytes()), options=INTERPRET)
    for size in (8, 16, 8):
        x = torch.randn(size)
        close(loaded(x), 3 * x)
    with pytest.raises(GuardFailed, match="shape"):
        loaded(torch.randn(9))


def test_variants_that_run_one_program_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = add_bundle(size=8)
    entry = bundle.entries["main"]
    variant = replace(entry.variants[0], takes=(("tensor", 0),) * 3)
    many = replace(bundle, entries={"main": replace(entry, weights=(), variants=(variant,) * 500)}, blobs={})
    counted: list[str] = []

    def counting(program, **rest):
        counted.append(program.name)
        return load_program(program, **rest)

    monkeypatch.setattr(loaded_bundle, "load_program", counting)
    loaded = load(Bundle.from_bytes(many.to_bytes()), options=INTERPRET)
    x = torch.randn(8)
    close(loaded(x), 3 * x)
    assert len(counted) == 1


# --- binaries -------------------------------------------------------------------------------------------------------


def chosen(bundle: Bundle, target: str, **job) -> str | None:
    spec = next(iter(bundle.kernels.values()))
    config = job.pop("config", Config.of({"XBLOCK": 256}, 4))
    binary = BundleLibrary(bundle).find(Job(spec, config, Target.parse(target), **job))
    return None if binary is None else content_of(binary)["for"]


def test_binary_is_chosen_by_architecture() -> None:
    from bundle_cases import fake_binary

    bundle = with_fake_binaries(add_bundle(), "sm_80", "sm_90", "gfx942")
    assert chosen(bundle, "sm_90") == "sm_90"
    assert chosen(bundle, "sm_80") == "sm_80"
    assert chosen(bundle, "sm_86") == "sm_80", "of one generation, older code runs on newer GPUs"
    assert chosen(bundle, "sm_89") == "sm_80"
    assert chosen(bundle, "sm_75") is None
    assert chosen(bundle, "sm_100") is None, "code for 9.0 runs on 9.0 alone"
    assert chosen(bundle, "gfx942") == "gfx942"
    assert chosen(bundle, "gfx90a") is None
    spec = next(iter(bundle.kernels.values()))
    ptx = bundle.with_binaries([fake_binary(spec, Config.of({"XBLOCK": 256}, 4), "sm_80", form="ptx")])
    assert chosen(ptx, "sm_120") == "sm_80"
    assert chosen(ptx, "sm_90") == "sm_90"
    assert chosen(ptx, "gfx90a") is None


def test_misaligned_tensors_get_a_build_without_promises() -> None:
    bundle = with_fake_binaries(add_bundle(), "sm_90")
    spec = next(iter(bundle.kernels.values()))
    library = BundleLibrary(bundle)
    found = library.find(Job(spec, Config.of({"XBLOCK": 256}, 4), Target.parse("sm_90"), aligned=False))
    assert content_of(found)["aligned"] is False
    assert library.find(Job(spec, Config.of({"XBLOCK": 512}, 4), Target.parse("sm_90"), aligned=False)) is None
    assert [config.block("XBLOCK") for config in library.configs(spec, Target.parse("sm_86"))] == []
    assert [config.block("XBLOCK") for config in library.configs(spec, Target.parse("sm_90"))] == [256, 512]


NO_COMPILER = """
    import sys
    class NoTriton:  # who looks for it finds nothing, as where it is not installed
        def __init__(self, finder):
            self.finder = finder
        def __getattr__(self, name):
            return getattr(self.finder, name)
        def find_spec(self, name, path=None, target=None):
            return None if name.split(".")[0] == "triton" else self.finder.find_spec(name, path, target)
    sys.meta_path[:] = map(NoTriton, sys.meta_path)
    processes = []
    def watch(event, args):
        if event in ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"):
            processes.append((event, args))
    import ctypes, contextlib
    import torch
    sys.addaudithook(watch)  # torch itself may ask the system where libraries lie when it is imported
    import ferrite_runtime.engines.cuda_engine as engine, ferrite_runtime.engines.launcher_choice as launchers
    import ferrite_runtime.loading.loaded_bundle as model
    import ferrite_runtime.compilation.triton_adapter as adapter
    from ferrite_runtime import Bundle, Options, load, known_devices, NoVariantForTarget
    from ferrite_runtime.devices.cuda_driver import Function
    from ferrite_runtime.devices.streams import Platform

    class Driver:
        launches = 0
        def load(self, binary, name): return Function(1, 1, binary, 32, 0)
        def launch(self, *args): Driver.launches += 1; return 0
        def copy(self, *args): pass
        def context(self): return 1
        def enter(self, context): pass

    # The GPU is a fake that launches nothing; everything between the bundle and the driver is real.
    adapter.is_triton_installed = lambda: False
    import ferrite_runtime.compilation.compiler as compilation
    compilation.is_triton_installed = lambda: False
    launchers.uses_triton_launcher = lambda options: False
    import ferrite_runtime.loading.loaded_program as loaded_module
    loaded_module.uses_triton_launcher = lambda options: False
    engine.cuda_driver = Driver
    engine.device_facts = lambda index: known_devices()[DEVICE]
    model.current_target = lambda: known_devices()[DEVICE].target
    nothing = lambda *args: 0
    engine.torch_platform = lambda: Platform(
        nothing, nothing, lambda: 1, lambda i: contextlib.nullcontext(), nothing, lambda: False
    )
    torch.cuda.current_device = lambda: 0
"""


def run_without_compiler(tmp_path: Path, device: str, body: str) -> str:
    code = textwrap.dedent(NO_COMPILER).replace("DEVICE", repr(device)) + textwrap.dedent(body)
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def cpu_inputs(bundle: Bundle) -> Bundle:
    """The bundle with inputs on the CPU, for a GPU that is a fake: its program still launches through the driver."""
    programs = {
        name: replace(program, inputs=tuple(replace(value, device="cpu") for value in program.inputs))
        for name, program in bundle.programs.items()
    }
    return replace(bundle, programs=programs)


def test_prebuilt_binaries_need_no_compiler(tmp_path: Path) -> None:
    cpu_inputs(with_fake_binaries(add_bundle(), "sm_80", "sm_90")).save(tmp_path / "add.ferrite")
    out = run_without_compiler(
        tmp_path,
        "h200",
        """
        import ferrite_runtime.engines.engine as host
        empty = torch.empty_strided
        host.make_allocator = lambda device: (lambda shape, strides, dtype: empty(shape, strides, dtype=dtype))
        loaded = load(sys.argv[1] + "/add.ferrite", options=Options(tune="none", use_cache=False),
                      weights={"layer.w": torch.ones(1000)})
        loaded.wait()
        for _ in range(3):
            loaded(torch.ones(1000))
        assert Driver.launches == 3, Driver.launches
        assert not processes, processes
        assert "triton" not in sys.modules
        print(loaded.report())
        """,
    )
    assert out.strip() == "bundle add: 1 prebuilt; no compiler was started"


def test_missing_binary_without_a_compiler_is_an_error_with_a_name(tmp_path: Path) -> None:
    cpu_inputs(with_fake_binaries(add_bundle(), "sm_80")).save(tmp_path / "add.ferrite")
    out = run_without_compiler(
        tmp_path,
        "b200",
        """
        weights = {"layer.w": torch.ones(1000)}
        loaded = load(sys.argv[1] + "/add.ferrite", options=Options(use_cache=False), weights=weights)
        try:
            loaded.wait()
        except NoVariantForTarget as error:
            print(error)
            print(error.hint)
        assert not processes
        """,
    )
    assert "kernel pointwise" in out
    assert "cannot run on sm_100: the bundle has no binary of it, triton is not installed to make one" in out
    assert "export with this GPU among the targets" in out


def test_bundle_for_other_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import ferrite_runtime.loading.loaded_bundle as model

    monkeypatch.setattr(model, "current_target", lambda: Target.parse("gfx942"))
    loaded = load(add_bundle(), weights={"layer.w": torch.ones(1000)})
    with pytest.raises(NoVariantForTarget, match="was exported for sm_90; this GPU is gfx942"):
        loaded(torch.ones(1000))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_machine_without_gpu_is_told_about_the_interpreter() -> None:
    loaded = load(add_bundle(), weights={"layer.w": torch.ones(1000)})
    with pytest.raises(NoVariantForTarget, match="finds none") as caught:
        loaded(torch.ones(1000))
    assert "interpret=True" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "said"),
    [({"path": 3}, "path is 3"), ({"path": None}, "path is None"), ({"path": ["a"]}, "path is"),
     ({"weights": [1, 2]}, "weights is"), ({"options": {"tune": "full"}}, "options is"), ({"digest": 3}, "digest is 3"),
     ({"operators": 3}, "operators is 3"), ({"operators": "aten.neg.default"}, "operators is a list"),
     ({"trust": "no"}, "trust is 'no'"), ({"trust": 1}, "trust is 1"), ({"trust": None}, "trust is None")],
)  # fmt: skip
def test_arguments_of_another_type_are_named_before_anything_is_read(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        load(given.pop("path", EXAMPLE), **given)


def test_names_that_are_none_are_told_with_what_was_meant() -> None:
    loaded = load(EXAMPLE, options=INTERPRET)
    with pytest.raises(GuardFailed, match="did you mean 'main'"):
        loaded["mian"]
    with pytest.raises(GuardFailed, match="has no 3"):
        loaded[3]
    with pytest.raises(OptionError, match="weights is"):
        loaded.bind([1])


def test_digests_are_hex_of_any_case() -> None:
    bundle = Bundle.read(EXAMPLE)
    assert load(EXAMPLE, digest=bundle.digest.upper()).bundle.digest == bundle.digest


def test_a_path_that_no_file_can_have_is_unreadable() -> None:
    with pytest.raises(FileUnreadable):
        load("a\0b")
