"""Spoils bundles with structure, digests being right, and sees what comes of each: refused, or run inside its buffers.

    python packages/ferrite-runtime/tests/bundle_mutations.py --count 3000 --seed 0

Every field of every kind of object is replaced by other types, extremes, values of its neighbours and strings that are
code; references are swapped, items deleted, doubled and added. Each spoiled bundle is loaded and called in a process of
its own, which may take two seconds of the processor and a gigabyte, and is watched by an audit hook: writing files,
starting processes, sockets, loading libraries, importing what is not the runtime's, and running text that came out of
the file end it.

What runs has to stay inside its buffers. Kernels do by the interpreter's fence, which looks at each access. Beside that
the tensors that a call is given lie between guard zones, and each result has to lie in its storage.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Autograd has threads where there is a GPU, and a process with such does not fork.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # An installed runtime is what is tested; the tree's own is taken where there is none.
    if find_spec("ferrite_runtime") is None:
        sys.path[:0] = [str(path) for path in sorted(Path(__file__).resolve().parents[2].glob("*/src"))]

import torch

from bundle_cases import opened, places, reseal
from bundle_sources import Source, make_sources
from ferrite_runtime import KINDS, Bundle, OptionError, Options, load
from ferrite_runtime.formats.canonical_json import kernel_id

SECONDS = 2
BYTES = 1 << 30
MARK = "CANARY"
"""Stands in every text of an attack: no text that is run may have it."""
CODE = "open('CANARY', 'w').close()"

EXTREMES = (
    *(0, 1, -1, 2, 3, 7, 64, 4096, 1 << 20, 1 << 24, 48000144, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 48),
    *(1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 31), -(1 << 63), 10**30, 0.5, -1.5, 1e308, 5e-324),
)
OTHERS = (None, True, False, "", [], {}, [[]], [None], [0], {"": 0}, ["add", 1, 2], {"ref": "x"}, {"tensor": 0})
STRINGS = (
    *("", " ", ".", "..", "x", "host", "args", "int", "max", "None", "__import__", "_torch", "_empty", "self", "ｈost"),
    *(
        "a" * 2000,
        "\ud800",
        "x\0y",
        "x\ny",
        "x\u2028y",
        "x\x0cy",
        "ﬁ",
        "tensor",
        "meta",
        "cuda",
        "cpu",
        "f64",
        "torch.os",
    ),
    *(f"aten.add\n    {CODE}", f"aten.add\n{CODE}\n#", f"x\u2028{CODE}", f"os and {CODE}", f"a={CODE}, dtype", CODE),
    *(f"torch.float32 if {CODE} else 0", f"x'); {CODE} #", f"{{{CODE}}}", f"'+{CODE}+'", "strided", "channels_last"),
    *(
        "aten.from_file.default",
        "import_module.__call__",
        "load_library.__call__",
        "aten.add.out",
        "aten.set_.source_Tensor",
    ),
    *(
        "aten.resize_.default",
        "aten.add.__call__",
        "aten._print.default",
        "ferrite.seed",
        "ferrite.alias",
        "aten.zeros.default",
    ),
    *("aten.as_strided.default", "prims.add.default", "_c10d_functional.all_reduce.default", "aten.save.default"),
)
EXPRESSIONS = (
    ["floordiv", 1, 0], ["mod", 5, 0], ["mul", 1 << 62, 1 << 62], ["sub", 0, 1 << 62], ["add", 1], ["pow", 2, 9],
    ["max", 0, 1, 2], ["mul", "n", "n"], ["min", "m", -5], ["sub", "m", 1000],
)  # fmt: skip
_HEAD = "import triton\nimport triton.language as tl\nfrom ferrite_runtime import fmath\n\n\n"


def _kernel_texts(name: str, signature: str) -> Iterator[str]:
    """Yields texts of a kernel that do what none may."""
    head = f"{_HEAD}@triton.jit\ndef {name}({signature}):\n"
    bodies = (
        CODE, f"__import__('os').system('touch {MARK}')", f"tl.core.builtins.{CODE}", f"triton.os.system('{MARK}')",
        f"tl.load.__globals__['os'].system('{MARK}')", f"x = [c for c in ().__class__.__mro__]\n    {CODE}",
        f"fmath.elementary.triton.os.system('{MARK}')", f"print({CODE!r})", f"tl.static_print({CODE})",
        "while True:\n        pass", "for i in range(1 << 40):\n        tl.program_id(0)", "x = 10 ** 10 ** 10",
        "tl.store(in0 + 100000000, 1.0)", "x = tl.load(in0 - 100000000 + tl.arange(0, 1024))", f"exec({CODE!r})",
        f"np.save('{MARK}', 1)", f"inspect.os.system('{MARK}')", "t = (1, 2) * 10000000000",
        "t = (1,)\n" + "    t = (t, t)\n" * 40 + "    if t == t:\n        pass",
        f"{name}({signature.partition(',')[0]})",
        "x = tl.constexpr(1 << 62) * tl.constexpr(1 << 62)", "x = tl.histogram(tl.arange(0, 16), 268435456)",
    )  # fmt: skip
    yield from (f"{head}    {body}\n" for body in bodies)
    yield f'{head}    """\ndef {name}({signature.split(",", maxsplit=1)[0]}, x={CODE}):\n    pass\n    """\n'
    yield f"{head}    pass  # \x0cdef {name}(x={CODE}): pass\n"
    yield f"{_HEAD}{CODE}\n"
    yield f"{_HEAD.replace('import triton.language', 'import os')}"
    yield f"{_HEAD}@triton.jit\ndef {name}({signature}, y={CODE}):\n    pass\n"
    yield f"{_HEAD}@{CODE}\ndef {name}({signature}):\n    pass\n"


def _steps(chance: random.Random, names: list[str]) -> dict[str, Any]:
    """Returns a step that a program did not have."""
    some = chance.choice(names)
    flat = {"dtype": chance.choice(["f32", "i64", "f8e5m2"]), "shape": [chance.choice(EXTREMES[:22])], "strides": [1]}
    call = {"do": "extern", "args": [], "kwargs": {}, "results": []}
    ref = {"ref": some}
    return chance.choice([
        {"do": "view", "name": "zz", "base": some, **flat, "offset": chance.choice(EXTREMES)},
        {"do": "reuse", "name": "zz", "from": some, **flat},
        {"do": "alloc", "name": "zz", **flat},
        {"do": "keep", "name": "zz", **flat},
        {"do": "let", "name": "zz", "value": chance.choice(EXPRESSIONS)},
        {"do": "let", "name": "zz", "value": {"stride": [some, chance.choice(EXTREMES)]}},
        {"do": "item", "name": "zz", "from": some, "dtype": "f32"},
        {"do": "free", "names": [some]},
        {"do": "copy", "to": some, "from": chance.choice(names)},
        {**call, "target": "aten.from_file.default", "args": [MARK, True, 16], "results": ["zz"]},
        {**call, "target": chance.choice(STRINGS), "args": [ref]},
        {**call, "target": "aten.ones.default", "args": [[1]], "kwargs": {f"a={CODE}, dtype": None}},
        {**call, "target": "aten.ones.default", "args": [[chance.choice(EXTREMES)]], "results": ["zz"]},
        {**call, "target": "aten.ones.default", "args": [[1]], "kwargs": {"layout": {"layout": f"os and {CODE}"}}},
        {**call, "target": "aten.clone.default", "args": [ref], "kwargs": {"memory_format": {"memory_format": CODE}}},
        {**call, "target": "aten.as_strided.default", "args": [ref, [1 << 20], [1]], "results": ["zz"]},
        {**call, "target": "aten.add.out", "args": [ref, ref], "kwargs": {"out": ref}},
        {**call, "target": "aten.t_.default", "args": [ref]},
        {**call, "target": "aten.mm.default", "args": [ref, ref], "kwargs": {"out": ref}},
        {**call, "target": "aten.to_sparse.default", "args": [ref], "results": ["zz"]},
        {**call, "target": "aten._sparse_coo_tensor_with_dims_and_tensors.default", "args": [1, 0, [4], ref, ref]},
        {**call, "target": "aten._nested_tensor_from_tensor_list.default", "args": [[ref, ref]], "results": ["zz"]},
        {**call, "target": "aten._convert_indices_from_coo_to_csr.default", "args": [ref, 4], "results": ["zz"]},
    ])  # fmt: skip


# --- spoiling -------------------------------------------------------------------------------------------------------

Place = tuple[Any, ...]


def _pattern(place: Place) -> str:
    """Returns which field of which kind of object a place is, whatever its number."""
    return ".".join("[]" if isinstance(key, int) else key for key in place)


def _at(manifest: Any, place: Place) -> Any:
    for key in place:
        manifest = manifest[key]
    return manifest


def _spoil_place(manifest: dict[str, Any], place: Place, chance: random.Random, fields: dict[str, list[Place]]) -> str:
    """Spoils one place of a manifest; returns how."""
    parent, key = _at(manifest, place[:-1]), place[-1]
    old = parent[key]
    ways = ["extreme", "other", "string", "neighbour", "delete", "expression", "swap"]
    ways += ["double"] if isinstance(parent, list) else ["rename"]
    ways += ["near"] * 3 if isinstance(old, int) and not isinstance(old, bool) else []
    way = chance.choice(ways)
    others = fields[chance.choice(list(fields))] if chance.random() < 0.4 else fields[_pattern(place)]
    if way == "delete":
        del parent[key]
    elif way == "double":
        parent.insert(key, copy.deepcopy(old))
    elif way == "rename":
        parent[chance.choice(STRINGS)] = parent.pop(key)
    elif way == "swap":
        other = chance.choice(others)
        host = _at(manifest, other[:-1])
        parent[key], host[other[-1]] = copy.deepcopy(host[other[-1]]), copy.deepcopy(old)
    else:
        parent[key] = {
            "extreme": lambda: chance.choice(EXTREMES),
            "other": lambda: chance.choice(OTHERS),
            "string": lambda: chance.choice(STRINGS),
            "neighbour": lambda: copy.deepcopy(_at(manifest, chance.choice(others))),
            "expression": lambda: chance.choice(EXPRESSIONS),
            "near": lambda: chance.choice([old + 1, old - 1, old * 2, old * 1000, -old, old // 2, old << 20]),
        }[way]()
    return f"{way} {_pattern(place)}"


def _spoil_text(manifest: dict[str, Any], chance: random.Random) -> str:
    kernel = chance.choice(manifest["kernels"])
    before, _, after = kernel["source"].partition(f"def {kernel['name']}(")
    signature = after.partition(")")[0]
    kernel["source"] = chance.choice([*_kernel_texts(kernel["name"], signature), before])
    return "text of a kernel"


def _spoil_steps(manifest: dict[str, Any], chance: random.Random) -> str:
    program = chance.choice(list(manifest["programs"].values()))
    names = [value["name"] for value in program["inputs"]] + [s["name"] for s in program["steps"] if "name" in s]
    step = _steps(chance, names)
    program["steps"].insert(chance.randrange(len(program["steps"]) + 1), step)
    if chance.random() < 0.5 and "zz" in json.dumps(step):
        program["outputs"][chance.randrange(len(program["outputs"]))] = {"value": "zz"}
    return f"added {step['do']}"


def spoil(source: Source, chance: random.Random) -> tuple[str, bytes]:
    """Returns how a bundle was spoiled, and its bytes; all digests are right."""
    manifest, blobs = opened(source.data)
    fields: dict[str, list[Place]] = {}
    for place in places(manifest):
        fields.setdefault(_pattern(place), []).append(place)
    kind = chance.random()
    if kind < 0.08:
        how = _spoil_text(manifest, chance)
    elif kind < 0.25 and manifest["programs"]:
        how = _spoil_steps(manifest, chance)
    else:
        how = _spoil_place(manifest, chance.choice(fields[chance.choice(list(fields))]), chance, fields)
    return how, reseal(_identified(manifest), blobs)


def _identified(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest whose kernels have the identities of what is in them, as far as that can be said."""
    kernels = manifest.get("kernels")
    if not isinstance(kernels, list) or not all(isinstance(kernel, dict) for kernel in kernels):
        return manifest
    text = json.dumps({**manifest, "kernels": []})
    for kernel in kernels:
        if isinstance(kernel.get("id"), str) and len(kernel["id"]) == 64:
            identity = kernel_id(kernel)
            text = text.replace(kernel["id"], identity)
            kernel["id"] = identity
    order = sorted(kernels, key=lambda kernel: str(kernel.get("id")))
    return {**json.loads(text), "kernels": order}


# --- watching -------------------------------------------------------------------------------------------------------

_FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.startfile", "subprocess.Popen"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("os.putenv", "os.unsetenv", "shutil.rmtree", "ctypes.dlopen", "ctypes.dlsym", "socket.__new__", "pty.spawn"),
    *(
        "urllib.Request",
        "tempfile.mkstemp",
        "tempfile.mkdtemp",
        "webbrowser.open",
        "pickle.find_class",
    ),
)
_OWN_IMPORTS = ("ferrite_runtime", "torch", "triton", "numpy", "sympy", "mpmath", "_", "encodings", "linecache")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """An audit hook that ends the process, saying why, where something is done that no bundle may do."""

    def __init__(self) -> None:
        self.report: Callable[[str], None] | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.report is None:
            return
        problem = _problem_of(event, arguments)
        if problem:
            report, self.report = self.report, None
            report(f"did {problem}")
            os._exit(3)


def _problem_of(event: str, arguments: tuple[Any, ...]) -> str:
    if event in _FORBIDDEN:
        return f"{event} {arguments!r}"[:300]
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING)
        return f"open {arguments!r}"[:300] if writes else ""
    if event == "import" and not arguments[0].startswith(_OWN_IMPORTS) and arguments[0] not in sys.stdlib_module_names:
        return f"import {arguments[0]}"
    if event == "compile":
        text, name = arguments
        shown = text if isinstance(text, str) else text.decode(errors="replace") if isinstance(text, bytes) else ""
        if MARK in shown and str(name).startswith("<ferrite"):
            return f"compile of a text with what came from the file: {shown[-200:]!r}"
    if event == "exec" and MARK in repr((arguments[0].co_names, arguments[0].co_consts)):
        return f"exec of {arguments[0]!r}"
    return ""


def _guarded(tensor: torch.Tensor, zones: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Returns a tensor like this between guard zones, which are noted."""
    if tensor.requires_grad or tensor.numel() == 0 or not tensor.is_contiguous():
        return tensor
    room = torch.full((tensor.numel() + 512,), 77, dtype=tensor.dtype)
    inside = room[256 : 256 + tensor.numel()].view(tensor.shape)
    zones.append((room[:256], room[256 + tensor.numel() :]))
    return inside.copy_(tensor)


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (leaf for item in value.values() for leaf in _flat(item))
    elif isinstance(value, (list, tuple)):
        yield from (leaf for item in value for leaf in _flat(item))


def _is_inside(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor lies in its storage."""
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.device.type != "cpu":
        return True
    pairs = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    low = tensor.storage_offset() + sum(min(pair, 0) for pair in pairs)
    high = tensor.storage_offset() + sum(max(pair, 0) for pair in pairs)
    return low >= 0 and (high + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def attempt(source: Source, data: bytes) -> str:
    """Returns what comes of loading and calling a bundle: ``refused KIND``, ``ran``, or what is wrong."""
    zones: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        weights = {name: _guarded(weight, zones) for name, weight in source.weights().items()}
        loaded = load(Bundle.from_bytes(data), weights=weights, options=Options(interpret=True, use_cache=False))
        results = list(_flat(source.call(loaded)))
    except (*KINDS, OptionError) as error:
        kinds = [kind.__name__ for kind in KINDS if isinstance(error, kind)]
        return f"refused {kinds[0]}" if len(kinds) == 1 else f"raised {type(error).__name__}, which is {kinds}"
    except BaseException as error:  # noqa: BLE001 - whatever else it is, it is a finding
        return f"raised {type(error).__name__}: {error}"[:500]
    if any((zone != 77).any() for pair in zones for zone in pair):
        return "wrote into a guard zone"
    return "ran" if all(map(_is_inside, results)) else "returned a tensor outside of its storage"


def attempt_apart(watch: Watch, source: Source, data: bytes) -> tuple[str, float]:
    """Returns what comes of a bundle in a process of its own, a fork of this one, and its seconds of the processor."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)  # what waits takes no time of the processor
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + BYTES,) * 2)
        environment, modules = dict(os.environ), set(sys.modules)
        watch.report = lambda text: os.write(writing, text.encode()) and None
        found = attempt(source, data)
        watch.report = None
        if dict(os.environ) != environment:
            found = "changed the environment"
        strange = [n for n in set(sys.modules) - modules if not n.startswith(_OWN_IMPORTS) and "." not in n]
        if [name for name in strange if name not in sys.stdlib_module_names]:
            found = f"imported {strange}"
        os.write(writing, found.encode(errors="replace"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if not found:
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        is_late = killed in (signal.SIGALRM, signal.SIGPROF)
        found = f"took more than {SECONDS} s" if is_late else f"ended the process: status {status}"
    return found, seconds


@dataclass(frozen=True)
class Finding:
    """A mutation that is neither refused nor runs as it may."""

    number: int
    source: str
    how: str
    outcome: str


def run_mutations(count: int, seed: int, only: int | None = None) -> tuple[Counter[str], list[Finding], float]:
    """Returns how often what came of mutations, those that are wrong, and the longest time that one took."""
    torch.set_num_threads(1)
    sources = make_sources()
    outcomes: Counter[str] = Counter()
    findings: list[Finding] = []
    longest = 0.0
    for source in sources:  # what is imported on the way is imported here
        sound = attempt(source, source.data)
        assert sound == "ran", f"{source.name}: {sound}"
    watch = Watch()
    for number in range(count) if only is None else [only]:
        chance = random.Random(f"{seed}-{number}")
        source = sources[number % len(sources)]
        how, data = spoil(source, chance)
        outcome, seconds = attempt_apart(watch, source, data)
        longest = max(longest, seconds)
        outcomes[outcome if outcome == "ran" or outcome.startswith("refused ") else "wrong"] += 1
        if outcome != "ran" and not outcome.startswith("refused "):
            findings.append(Finding(number, source.name, how, outcome))
    return outcomes, findings, longest


def main() -> int:
    """Runs the mutations that the command line asks for; the status is 1 if one was neither refused nor ran well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="mutations (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by (default: 0)")
    parser.add_argument("--only", type=int, default=None, metavar="NUMBER", help="this one alone")
    arguments = parser.parse_args()
    outcomes, findings, longest = run_mutations(arguments.count, arguments.seed, arguments.only)
    for finding in findings:
        print(f"{finding.number} of {finding.source}: {finding.how}: {finding.outcome}")
    print(f"{sum(outcomes.values())} mutations, the longest took {longest:.2f} s")
    for outcome, times in outcomes.most_common():
        print(f"{times:6} {outcome}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
