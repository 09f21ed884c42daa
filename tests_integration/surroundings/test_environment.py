"""What the environment of a process says: variables of Triton and Python, folders that are not there."""

from __future__ import annotations

from pathlib import Path

from against_eager import own_only
from apart import run, run_program, succeed

pytestmark = own_only("it is about ferrite's own processes and files")

INTERPRETED = """
import torch, triton
import triton.language as tl
import ferrite_torch
from ferrite_runtime import Bundle, Kernel, Options, bundle_kernels, user_kernel

@triton.jit
def doubled(v):
    return v * 2

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, doubled(tl.load(x + i, i < n)) + tl.sum(tl.load(y + i, i < n), 0), i < n)

def check(write):
    x, y, out = torch.randn(3, 64)
    write(x, y, out)
    torch.testing.assert_close(out, 2 * x + y.sum())

def by_triton(x, y, out):
    add[(1,)](x, y, out, 64, BLOCK=64)

@torch.compile(backend="ferrite", options={"fallback": False})
def compiled(x):
    return torch.nn.functional.gelu(x.softmax(-1)).cumsum(0), x.sort().values, x.var(0).erf()

check(by_triton)
compiled(torch.randn(5, 7))
check(by_triton)  # Triton's own way of interpreting is as it was
spec = user_kernel(add, {"x": "f32 read", "y": "f32 read", "out": "f32 write", "n": "i32"}, 1, [{"BLOCK": 64}])
check(lambda x, y, out: Kernel(spec)(x, y, out, 64))
check(by_triton)
bundle = bundle_kernels(spec, targets=("sm_90",), options=Options(workers=0))
assert [entry.form for entry in bundle.binaries] == ["cubin", "cubin"], bundle.binaries
print(spec.id)
"""


def test_triton_may_be_told_to_interpret(tmp_path: Path) -> None:
    """The variable of Triton's authors changes every jitted function; it changes nothing of what comes out."""
    identities = {run_program(INTERPRETED, tmp_path, env={"TRITON_INTERPRET": "1"})}
    # Said too late for Triton's own functions, Triton fails where Ferrite does not.
    told = 'import os, triton\nos.environ["TRITON_INTERPRET"] = "1"\n'
    identities.add(run_program(told + INTERPRETED.replace("check(by_triton)", ""), tmp_path))
    assert len(identities) == 1


ODD = """
import multiprocessing, os, signal, sys, tempfile, threading, time
import torch
import ferrite_torch
import ferrite_torch.compilation as compilation
from ferrite_runtime import Options, cross_compile

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
STRICT = {"fallback": False, "use_cache": True}
x = torch.randn(3, 4)

def check(holds):  # Python leaves assertions out under -O
    if not holds:
        raise RuntimeError("it does not hold")

def scores(x):
    return torch.nn.functional.gelu(x.softmax(-1)).sum(0)

compiled = torch.compile(scores, backend="ferrite", options=STRICT)

def work(queue):
    queue.put(compiled(torch.ones(3, 4)).sum().item())

def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        return True

def interrupt(*arguments):
    compilation.schedule_module = theirs
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    theirs, compilation.schedule_module = compilation.schedule_module, interrupt
    check(interrupted(lambda: torch.compile(lambda x: x.sin().cumsum(0), backend="ferrite", options=STRICT)(x)))
    torch.testing.assert_close(compiled(x), scores(x))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    compiled_model = torch.compile(model, backend="ferrite", options=STRICT)
    with torch.no_grad(): compiled_model(x)
    check(ferrite_torch.explain(scores, x).graphs)
    scope = {"torch": torch, "x": x}
    exec("made = torch.compile(lambda x: x.cos() + x.sum(), backend='ferrite', options={'fallback': False})(x)", scope)
    results = []
    apart = lambda x: x.cumsum(0) * 2
    call = lambda: results.append(torch.compile(apart, backend="ferrite", options=STRICT)(x))
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        torch.testing.assert_close(result, apart(x))
    check(len(results) == 3)
    program = ferrite_torch.compiled_programs()[0]
    check(cross_compile(program, "sm_90", options=Options(tune="none", workers=1, use_cache=False)).is_complete)
    check(not ferrite_torch.statistics()["fallbacks"])
    os.chdir("/")
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    child.join(100)
    check(child.exitcode == 0)
    check(abs(queue.get() - scores(torch.ones(3, 4)).sum().item()) < 1e-5)
    later = Options(tune="max", workers=2, use_cache=False)
    threading.Thread(target=lambda: cross_compile(program, "sm_80", options=later), daemon=True).start()
    time.sleep(0.2)  # the process ends while its workers start
"""


def test_warnings_are_errors_and_nothing_is_where_it_should_be(tmp_path: Path) -> None:
    """No home that can be written, a locale of bytes, a current folder that is gone, interrupts, threads, a child."""
    (tmp_path / "home").touch()
    environment = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": None,
        "FERRITE_CACHE_DIR": None,
        "TORCHINDUCTOR_CACHE_DIR": None,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONWARNINGS": "error",
    }
    run_program(ODD, tmp_path, "-X", "dev", "-X", "faulthandler", "-O", env=environment, arguments=("forkserver",))


def test_a_program_may_come_from_a_stream_to_a_process_without_a_home(tmp_path: Path) -> None:
    source = ODD.replace("sys.argv[1]", '"fork"')
    # In a locale of bytes torch itself cannot import what it takes joint graphs apart with.
    environment = {"HOME": None, "XDG_CACHE_HOME": None, "FERRITE_CACHE_DIR": None}
    succeed(run("-W", "error", "-", env=environment, cwd=tmp_path, stdin=source))
