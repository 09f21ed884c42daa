"""Measuring in another process: what reaches it, and what its death costs."""

from __future__ import annotations

import io
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ferrite_runtime.ahead_of_time.isolation import Isolation, describe_launch, read_integers  # noqa: E402
from ferrite_runtime.ahead_of_time.trial_worker import Trials, serve  # noqa: E402
from ferrite_runtime.compilation.worker_messages import encode_frame, read_frame  # noqa: E402
from ferrite_runtime.compilation.worker_pool import Worker  # noqa: E402
from ferrite_runtime.engines.cuda_kernels import DeviceKernel  # noqa: E402
from ferrite_runtime.errors import LaunchFailed, OutOfResources  # noqa: E402
from ferrite_runtime.formats.config import Config  # noqa: E402
from ferrite_runtime.formats.kernel_spec import KernelSpec  # noqa: E402
from runtime_fakes import FakeDriver, FakeMeter, FakePool, fake_machine  # noqa: E402
from runtime_kernels import grid_axis, row_sum, scaled, spec, tensor  # noqa: E402

CPU = torch.device("cpu")


def gather() -> KernelSpec:
    """Adds 1 to what indices name: a wrong index leaves the table."""
    body = (
        "@triton.jit\ndef gather(index_ptr, table_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    place = tl.load(index_ptr + x, x < 8)\n"
        "    tl.store(table_ptr + place, tl.load(table_ptr + place, x < 8) + 1.0, x < 8)\n"
    )
    params = [tensor("index_ptr", "i64"), tensor("table_ptr", access="readwrite")]
    return KernelSpec.from_mapping(spec("gather", body, params, [grid_axis("x", 8)], mutated=["table_ptr"]))


class InProcess:
    """A measuring process that is none: messages go through the same bytes."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.heads: list[dict] = [{"ready": True}]
        self.closed = False

    def send(self, message: bytes) -> None:
        sink = io.BytesIO()
        serve(io.BytesIO(message), sink, self.trials)
        sink.seek(0)
        read_frame(sink.read)
        self.heads.append(read_frame(sink.read)[0])

    def receive(self, seconds: float) -> tuple[dict, bytes]:
        return self.heads.pop(0), b""

    def close(self) -> None:
        self.closed = True


def test_arguments_in_the_other_process_are_like_these() -> None:
    kernel = DeviceKernel.begin(gather(), fake_machine(tune="full"))
    index, table = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]), torch.randn(8)
    before = table.clone()
    driver = FakeDriver()
    trials = Trials(driver, lambda size: FakeMeter(), CPU, 0)
    isolation = Isolation(lambda: InProcess(trials))
    values = (index.data_ptr(), table.data_ptr())
    with isolation.bench(kernel, values, (index, table)) as bench:
        config = kernel.candidates[0]
        bench.begin([config])
        assert bench.examine(config).shared == 0
        assert bench.sample(config, 2) == [1.0, 1.0]
    assert driver.launches[0][:2] == ("gather", config), "it ran there, with indices that are in bounds"
    assert torch.equal(table, before), "nothing happened here"
    sent = trials._storage[0][0]
    assert index.numpy().tobytes() in sent.numpy().tobytes()
    assert trials._protection is not None
    assert len(trials._protection.saved) == 1


def test_description_holds_shared_tensors_once_and_integers_only_within_bounds() -> None:
    kernel = DeviceKernel.begin(KernelSpec.from_mapping(scaled()), fake_machine())
    x = torch.randn(64)
    head, body = describe_launch(kernel, (x.data_ptr(), x.data_ptr() + 64, 16, 2.0), (x, x, None, None))
    assert len(head["tensors"]) == 1
    assert head["arguments"] == [
        {"tensor": 0, "offset": 0}, {"tensor": 0, "offset": 64}, {"number": 16}, {"number": 2.0}
    ]  # fmt: skip
    assert body == b""
    assert head["restored"] == [0], "written through one name, read through the other"
    assert read_integers(torch.arange(4), 31) == b""
    assert len(read_integers(torch.arange(8)[::2], 64)) == 56, "what lies between counts"
    assert read_integers(torch.randn(4), 64) == b""


# --- deaths ---------------------------------------------------------------------------------------------------------

CHILD = """
    import os, sys, time
    from ferrite_runtime.compilation.worker_messages import encode_frame, read_frame
    def send(head):
        sys.stdout.buffer.write(encode_frame(head)); sys.stdout.buffer.flush()
    send({"ready": True})
    while (frame := read_frame(sys.stdin.buffer.read)) is not None:
        head = frame[0]
        if head["do"] == "sample" and "RBLOCK=1024" in head["config"]:
            BAD
        send({"ok": True, "times": [1.0 if "RBLOCK=512" in head.get("config", "") else 2.0] * head.get("count", 0)})
"""
BAD = {
    "crash": "os._exit(139)",
    "hang": "time.sleep(100)",
    "fault": "send({'ok': False, 'message': 'an illegal memory access', 'is_lost': True}); continue",
}
A, B, C = (Config.of({"XBLOCK": 1, "RBLOCK": block}, 4) for block in (2048, 1024, 512))


@pytest.mark.parametrize("kind", BAD)
def test_candidate_that_kills_the_process_costs_itself(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD).replace("BAD", BAD[kind]))
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker.start([sys.executable, str(script)], "measuring process"))
        return started[-1]

    isolation = Isolation(start, hang_seconds=1.0)
    machine = fake_machine(tune="quick", bench_apart=isolation.bench, pool=FakePool())
    kernel = DeviceKernel(KernelSpec.from_mapping(row_sum(4096, 4096)), machine, (A, B, C))
    x, out = torch.zeros(4096, 4096), torch.zeros(4096)
    arguments, owners = (x.data_ptr(), out.data_ptr()), (x, out)
    try:
        assert kernel._decide([A, B, C], 0, arguments, owners) == C
    finally:
        isolation.close()
    assert len(started) == 2, "the one that died, and the one after it"
    (outcome,) = machine.tuned.values()
    (failed,) = [trial for trial in outcome.trials if trial.problem]
    assert failed.config == B
    words = {"crash": "measuring process died", "hang": "no answer within 1 s", "fault": "illegal memory access"}
    assert words[kind] in (failed.problem or "")
    assert machine.meter.calls == 0
    assert all(worker.process.poll() is not None for worker in started)


def test_second_set_of_arguments_that_does_not_fit_is_measured_here(monkeypatch) -> None:
    def no_room(*shape, **options):
        raise torch.OutOfMemoryError("out of memory")

    trials = Trials(FakeDriver(), lambda size: FakeMeter(), CPU, 0)
    isolation = Isolation(lambda: InProcess(trials))
    machine = fake_machine(tune="full", bench_apart=isolation.bench)
    kernel = DeviceKernel.begin(gather(), machine)
    index, table = torch.arange(8), torch.randn(8)
    values, owners = (index.data_ptr(), table.data_ptr()), (index, table)
    with monkeypatch.context() as patch:
        patch.setattr(Trials, "_make", no_room)
        with pytest.raises(OutOfResources, match="bytes for arguments"), isolation.bench(kernel, values, owners):
            pass
        assert kernel._decide([kernel.candidates[0]], 0, values, owners) is not None
    assert machine.meter.calls > 0


def test_message_that_nobody_knows_is_answered() -> None:
    trials = Trials(FakeDriver(), lambda size: FakeMeter(), CPU, 0)
    assert trials.answer({"do": "dance"}, b"") == {"ok": False, "message": "'dance' is no message"}
    assert encode_frame(trials.answer({"do": "dance"}, b""))
    kernel = DeviceKernel.begin(gather(), fake_machine())
    index = torch.arange(8)
    isolation = Isolation(lambda: InProcess(trials))
    values = (index.data_ptr(), index.data_ptr())
    with isolation.bench(kernel, values, (index, index)) as bench, pytest.raises(LaunchFailed, match="is no message"):
        bench._ask({"do": "dance"})
