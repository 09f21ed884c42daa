"""Tuning bundles, programs and kernels, on a device that interprets; what it tells meanwhile."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import user_functions  # noqa: E402
from bundle_cases import EXAMPLE, REGRESSION, add_bundle  # noqa: E402
from ferrite_runtime import Bundle, DeviceUnavailable, Program, tune, user_kernel  # noqa: E402
from ferrite_runtime.ahead_of_time.example_inputs import expected_sizes, make_arguments, make_inputs  # noqa: E402
from ferrite_runtime.ahead_of_time.kernel_times import measure_kernels  # noqa: E402
from ferrite_runtime.ahead_of_time.program_tuning import Session, as_bundle, tune_bundle  # noqa: E402
from ferrite_runtime.errors import InputError, OptionError  # noqa: E402
from ferrite_runtime.formats.kernel_spec import KernelSpec  # noqa: E402
from ferrite_runtime.formats.steps import Launch  # noqa: E402
from ferrite_runtime.store.interface import MemoryStore  # noqa: E402
from ferrite_runtime.tuning.progress import EventLines, ProgressLine, choose_progress  # noqa: E402
from runtime_fakes import FakeDriver, FakeMeter, FakeStreams, fake_machine  # noqa: E402
from runtime_kernels import layout, pointwise, program, row_sum, scaled, spec, tensor_input  # noqa: E402

CPU = torch.device("cpu", 0)


def on_cpu(bundle: Bundle) -> Bundle:
    programs = {name: each.on_cpu() for name, each in bundle.programs.items()}
    return replace(bundle, programs=programs)


def session(bundle: Bundle, **parts) -> Session:
    given = {name: parts.pop(name) for name in ("inputs", "sizes", "elements") if name in parts}
    machine = parts.pop("machine", None) or fake_machine(tune="full", **parts)
    return Session(
        on_cpu(bundle), machine, FakeStreams().platform(), CPU, given.get("inputs", {}), given.get("sizes", {}),
        given.get("elements"),
    )  # fmt: skip


def test_bundle_is_tuned_and_the_second_time_nothing_is_measured() -> None:
    store, events = MemoryStore(), []
    machine = replace(fake_machine(tune="full", store=store, meter=FakeMeter([4.0, 1.0])), listen=events.append)
    report = tune_bundle(session(add_bundle(size=16), machine=machine))
    (row,) = report.kernels
    assert (row.name, row.state, row.ms, row.reference_ms, row.speedup) == ("pointwise", "measured", 1.0, 4.0, 4.0)
    assert report.measured > 2
    assert len(report.records) >= report.measured
    assert [event["event"] for event in (events[0], events[-1])] == ["started", "finished"]
    assert json.loads(json.dumps(report.to_mapping()))["kernels"][0]["config"] == row.config
    again = fake_machine(tune="full", store=store)
    known = tune_bundle(session(add_bundle(size=16), machine=again))
    assert (known.measured, again.meter.calls) == (0, 0)
    assert [(r.state, r.config, r.ms, r.reference_ms) for r in known.kernels] == [("known", row.config, 1.0, 4.0)]


def test_again_measures_what_is_known_but_each_kernel_once() -> None:
    store = MemoryStore()
    tune_bundle(session(add_bundle(size=16), store=store))
    twice = add_bundle(size=16)
    twice = replace(twice, programs={"a": twice.programs["main.inference"], "b": twice.programs["main.inference"]})
    machine = replace(fake_machine(tune="full", store=store), is_forced=True)
    report = tune_bundle(session(twice, machine=machine))
    assert [row.state for row in report.kernels] == ["measured"]
    assert len(machine.tuned) == 1
    once = machine.meter.calls
    alone = replace(fake_machine(tune="full", store=store), is_forced=True)
    tune_bundle(session(add_bundle(size=16), machine=alone))
    assert once == alone.meter.calls


def test_kernels_outside_of_programs_need_arguments_or_sizes() -> None:
    bundle = as_bundle(scaled())
    assert [row.reason for row in tune_bundle(session(bundle)).skipped] == [
        "kernel scaled needs a value for its size 'n': give arguments, or sizes"
    ]
    (row,) = tune_bundle(session(bundle, sizes={"n": 64})).kernels
    assert row.state == "measured"
    x = torch.randn(64)
    given = {"scaled": (x, torch.empty(64), 64, 2.0)}
    assert tune_bundle(session(bundle, inputs=given)).kernels[0].state == "measured"
    wrong = tune_bundle(session(bundle, inputs={"scaled": (x, x, 64)}))
    assert "takes 4 arguments, got 3" in wrong.skipped[0].reason


def test_kernel_that_somebody_wrote_has_a_choice_for_each_bucket_of_sizes() -> None:
    params = {"x": "f32 read", "y": "f32 read", "out": "f32 write", "n": "i32", "a": "f32"}
    configs = [{"BLOCK": 16}, {"BLOCK": 64}]
    written = user_kernel(user_functions.saxpy, params, ("ceildiv", "n", "BLOCK"), configs)
    store = MemoryStore()
    for n, measured in ((100, 2), (120, 0), (40, 2)):
        machine = fake_machine(tune="quick", store=store)
        report = tune_bundle(session(as_bundle(written), machine=machine, sizes={"n": n}))
        assert (report.measured, dict(report.kernels[0].sizes)) == (measured, {"n": 1 << (n - 1).bit_length()})


def test_program_that_fails_costs_its_kernels_and_no_other(monkeypatch) -> None:
    good, bad = pointwise("a + 1", name="good", size=64), pointwise("a + 2", name="bad", size=64)
    programs = {}
    for kernel in (bad, good):
        steps = [
            {"do": "alloc", "name": "o", **layout([64])},
            {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
        ]
        mapping = program([tensor_input("x", [64])], [kernel], steps, [{"value": "o"}])
        programs[kernel["name"]] = Program.from_mapping(mapping)
    kernels = {kernel.id: kernel for each in programs.values() for kernel in each.kernels}
    real, calls = torch.Tensor.normal_, []

    def sometimes(self, **options):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nmore words")
        return real(self, **options)

    monkeypatch.setattr(torch.Tensor, "normal_", sometimes)
    report = tune_bundle(session(Bundle("b", kernels, programs)))
    assert {row.name: row.state for row in report.kernels} == {"good": "measured", "bad": "skipped"}
    assert report.skipped[0].reason == (
        "its inputs or buffers do not fit into memory: CUDA out of memory. Tried to allocate 80 GiB"
    )


def test_fault_of_the_reference_itself_is_a_reason() -> None:
    driver = FakeDriver()
    driver.statuses = [700] * 1000
    report = tune_bundle(session(add_bundle(size=16), driver=driver))
    assert "launching pointwise failed with status 700" in report.skipped[0].reason


class QuietDriver(FakeDriver):
    """Launches nothing."""

    def launch(self, config, function, params, extra) -> int:
        return 0


@pytest.mark.parametrize("path", [EXAMPLE, REGRESSION], ids=["example", "regression"])
def test_every_kernel_of_an_exported_model_is_tuned_and_timed(path) -> None:
    """Its programs run with inputs made up for them, forward and backward, extern calls included."""
    bundle = Bundle.read(path)
    report = tune_bundle(session(bundle, machine=fake_machine(tune="quick", driver=QuietDriver())))
    assert not report.skipped
    assert {row.id for row in report.kernels} == set(bundle.kernels)
    assert sum(row.state == "measured" for row in report.kernels) > len(bundle.kernels) / 2
    times = measure_kernels(session(bundle, machine=fake_machine(tune="none", driver=QuietDriver())), samples=3)
    assert not times.skipped
    assert {row.id for row in times.kernels} == set(bundle.kernels)
    assert all(row.spread is not None and row.bytes > 0 and row.source == "policy" for row in times.kernels)
    launches = [step for program in bundle.programs.values() for step in program.steps if isinstance(step, Launch)]
    assert sum(row.launches for row in times.kernels) == len(launches)


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(DeviceUnavailable, match="finds none"):
        tune(add_bundle(size=16))
    with pytest.raises(OptionError, match="quick, full"):
        tune(add_bundle(size=16), effort="everything")


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_inputs_are_made_up_in_the_right_layout() -> None:
    inputs = [
        tensor_input("x", [3, 4]),
        {**tensor_input("t", [3, 4]), "strides": [1, 3]},
        {**tensor_input("e", [3, 4]), "strides": [0, 1]},
        tensor_input("i", [5], "i64"),
        tensor_input("f", [5], "f8e4m3fn"),
        tensor_input("m", [2], "bool"),
        tensor_input("z", [0, 7]),
        {"name": "s", "kind": "scalar", "dtype": "f64"},
    ]
    made = make_inputs(Program.from_mapping(program(inputs, [], [], [])), CPU)
    x, t, e, i, f, m, z, s = made
    assert (x.shape, x.stride(), t.stride(), e.stride()) == ((3, 4), (4, 1), (1, 3), (0, 1))
    assert (i.tolist(), m.tolist(), z.shape, s) == ([0] * 5, [False] * 2, (0, 7), 1.0)
    assert f.dtype == torch.float8_e4m3fn
    assert x.std() > 0.3
    assert torch.equal(x, make_inputs(Program.from_mapping(program(inputs, [], [], [])), CPU)[0]), "the same every time"


def test_open_sizes_are_those_that_kernels_expect() -> None:
    kernel = scaled()
    params = [*kernel["params"][:2], {**kernel["params"][2], "hint": 640}, kernel["params"][3]]
    kernel = spec("scaled", kernel["source"].partition("\n\n\n")[2], params, kernel["axes"])
    steps = [
        {"do": "let", "name": "n", "value": {"size": ["x", 0]}},
        {"do": "alloc", "name": "o", **layout(["n"], strides=[1])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o", "n", 2.0]},
    ]
    opened = {**tensor_input("x", [1]), "shape": ["n"]}
    read = Program.from_mapping(program([opened], [kernel], steps, [{"value": "o"}]))
    assert expected_sizes(read) == {"n": 640}
    assert make_inputs(read, CPU)[0].shape == (640,)
    assert make_inputs(read, CPU, {"n": 7})[0].shape == (7,)


def test_arguments_of_a_kernel_are_as_long_as_its_sizes_say() -> None:
    kernel = KernelSpec.from_mapping(scaled())
    a, out, n, factor = make_arguments(kernel, {"n": 100}, CPU)
    assert (a.numel(), out.numel(), n, factor) == (100, 100, 100, 1.0)
    assert make_arguments(kernel, {"n": 100}, CPU, 256)[0].numel() == 256
    assert make_arguments(KernelSpec.from_mapping(row_sum(4, 8)), {}, CPU)[0].numel() == 32
    with pytest.raises(InputError, match="size 'n'"):
        make_arguments(kernel, {}, CPU)


# --- progress -------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_gets_a_line_and_a_file_gets_json() -> None:
    events = [
        {"event": "started", "kernels": 2, "device": "d"},
        {"event": "compiled", "kernel": "softmax", "configs": 5, "kept": 4},
        {"event": "measured", "kernel": "softmax", "config": "A", "ms": 0.0123, "samples": 9},
        {"event": "measured", "kernel": "softmax", "config": "B", "ms": 0.0150, "samples": 9},
    ]
    terminal, file = Terminal(), io.StringIO()
    line, lines = choose_progress(terminal), choose_progress(file)
    assert isinstance(line, ProgressLine)
    assert isinstance(lines, EventLines)
    for event in events:
        line(event)
        lines(event)
    assert line.text() == "[0/2] softmax: 5 configs, 2 measured, best 12.3 µs"
    assert [json.loads(text) for text in file.getvalue().splitlines()] == events
    line({"event": "chosen", "kernel": "softmax"})
    assert "[1/2]" in terminal.getvalue().rpartition("\r")[2]
    line({"event": "finished"})
    assert terminal.getvalue().endswith("\r\x1b[K"), "nothing stays behind"
    assert "\n" not in terminal.getvalue()
    narrow = Terminal()
    short = ProgressLine(narrow, width=20)
    short(events[1])
    assert len(narrow.getvalue()) == len("\r\x1b[K") + 19
