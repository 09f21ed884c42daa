"""Shows what the kernels of `benchmarks/kernels/run.py` are compiled to for a GPU that need not be there.

    python benchmarks/kernels/compiled_code.py --cases "cumsum columns,softmax dim 0"
    python benchmarks/kernels/compiled_code.py --cases sort --emit kernels/          # write the specs, where torch is
    python benchmarks/kernels/compiled_code.py --specs kernels/ --tune max           # compile them, where Triton is
    python benchmarks/kernels/compiled_code.py --operations exp,erf                  # or all: operations on float32

For each kernel and config: the programs of a launch, registers, stack bytes (spills), shared memory, the programs that
a multiprocessor holds at once, the instructions of the machine code by kind, and for each loop in how many turns it
loads: in one, if no load is issued after what another brought is used. Without loops also the instructions of all
threads for each point of the kernel's axes: an H100 issues about 19 while it reads two bytes, 38 while it reads and
writes as many. Cases are taken at full size, on tensors without data.

Of an operation it counts what a kernel that applies it to each element has more of instructions than one that adds,
beside its price in the language (`ferrite_ir.language.ops`), by which is decided what is computed again. Instructions
for rare operands count as well, as they stand in the machine code: sines of large angles, quotients of tiny numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path

KINDS = (
    ("global loads", r"LDG"),
    ("global stores", r"STG"),
    ("atomics", r"ATOM|RED"),
    ("shared", r"LDS|STS|LDSM|STSM"),
    ("spills", r"LDL|STL"),
    ("shuffles", r"SHFL"),
    ("barriers", r"BAR|WARPSYNC"),
    ("floats", r"F(ADD|MUL|FMA|MNMX|SEL|SETP|SET|CHK)|H(ADD|MUL|FMA|MNMX|SET)|MUFU"),
    ("conversions", r"F2F|F2I|I2F|F2FP|PRMT"),
    ("integers", r"IADD|IMAD|LEA|LOP|SHF|ISETP|IMNMX|VIMNMX|SEL|IABS|POPC|FLO|BFE|BFI|VIADD"),
)
"""Instructions by what they begin with; the first that fits counts."""
POINTS = 1 << 22
"""Elements that a kernel of one operation has."""


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel compiled with one config, in so many seconds; ``None`` where the file does not say."""

    kernel: str
    config: str
    programs: int
    registers: int | None
    stack: int | None
    shared: int
    resident: int
    widths: str
    mix: Counter[str]
    seconds: float
    loops: str
    each: float | None
    """Instructions of all threads for each point of the kernel's axes; None where loops repeat some."""


def emitted_kernels(
    cases: Iterable[Any], names: list[str], dtype_name: str, policy: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each chosen case's kernels, in launch order, as (case, spec)."""
    import torch

    from benchmarks.kernels.cases import Case
    from ferrite_torch import FerriteError, Options, export
    from ferrite_torch.torch_private.fake_tensors import fake_mode

    def exported(case: Case) -> Any:
        with fake_mode():
            inputs = case.make(getattr(torch, dtype_name), 1)
        given = inputs[:-1] if case.trains else inputs
        options = Options(policy=policy)
        return export(case.function, given, prebuilt=False, training=case.trains, options=options)

    for case in cases:
        if any(part in case.name for part in names):
            try:
                bundle = exported(case)
            except FerriteError as error:  # such as a case that writes to its inputs: the others do not
                print(f"{case.name}: {error}", file=sys.stderr)
                continue
            kernels = {
                step.kernel: None
                for program in bundle.programs.values()
                for step in program.steps
                if type(step).__name__ == "Launch"
            }
            for kernel in kernels:
                yield case.name, bundle.kernels[kernel].to_mapping()


def compiled_code(mapping: dict[str, Any], target_name: str, tune: str) -> Iterator[Code]:
    """Yields what a kernel spec is compiled to with each of its configs."""
    from ferrite_runtime import KernelSpec
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import typical_device
    from ferrite_runtime.formats.target import Target
    from ferrite_runtime.policies.candidates import configs

    spec = KernelSpec.from_mapping(mapping)
    target = Target.parse(target_name)
    device = typical_device(target)
    for config in configs(spec, device, tune):
        started = time.perf_counter()
        binary, blocks = compile_job(Job(spec, config, target)), dict(config.blocks)
        seconds = time.perf_counter() - started
        listing = disassembled(binary.code)
        mix, widths = instruction_mix(listing)
        turns = ", ".join(f"{loads} loads in {turns}" for loads, turns in load_turns(listing))
        programs = spec.expected_programs(blocks)
        threads = programs * config.num_warps * target.warp_size
        points = math.prod(max(1, size) for size in spec.hint_sizes().values())
        yield Code(
            spec.name,
            str(config),
            programs,
            binary.registers,
            binary.local_bytes,
            binary.shared,
            resident_programs(device, config.num_warps, binary.registers or 0, binary.shared),
            widths,
            mix,
            seconds,
            turns,
            None if has_loops(listing) or spec.form == "template" else sum(mix.values()) * threads / points,
        )


def resident_programs(device: Any, warps: int, registers: int, shared: int) -> int:
    """Returns how many programs a multiprocessor holds at once; registers are given out by 256 for each warp."""
    threads = warps * device.target.warp_size
    limits = [device.threads_per_multiprocessor // threads, 32]
    if registers:
        limits.append(device.registers_per_multiprocessor // (warps * -(-registers * 32 // 256) * 256))
    if shared:
        limits.append(device.shared_per_program // (shared + 1024))
    return min(limits)


_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def disassembled(cubin: bytes) -> str:
    """Returns the listing of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True).stdout


def loops_of(listing: str) -> Iterator[list[str]]:
    """Yields the lines of each loop: from where a branch goes back to, up to the branch."""
    lines = listing.splitlines()
    labels = {found[1]: number for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    for number, line in enumerate(lines):
        branch = _BRANCH.search(line)
        if branch is not None and labels.get(branch[1], number) < number:
            yield lines[labels[branch[1]] : number]


def has_loops(listing: str) -> bool:
    """Returns whether there is any loop but the one of nothing that ends a program."""
    return any(len(steps) > 1 for steps in loops_of(listing))


def load_turns(listing: str) -> Iterator[tuple[int, int]]:
    """Yields, for each loop that loads from global memory, the loads of a step and the turns that they are issued in.

    A turn ends where something reads what a load of it brings: the threads wait there, and the next load waits too.
    """
    for steps in loops_of(listing):
        loads = turns = 0
        pending: set[str] = set()
        is_new = True
        for step in steps:
            found = _INSTRUCTION.match(step)
            if found is None:
                continue
            registers = _REGISTER.findall(step[found.end() :])
            if found[1].startswith("LDG"):
                loads, turns, is_new = loads + 1, turns + is_new, False
                width = 4 if ".128" in found[1] else 2 if ".64" in found[1] else 1
                pending |= {str(int(first) + offset) for first in registers[:1] for offset in range(width)}
            elif pending.intersection(registers if found[1].startswith("ST") else registers[1:]):
                pending, is_new = set(), True
        if loads:
            yield loads, turns


def instruction_mix(listing: str) -> tuple[Counter[str], str]:
    """Returns the instructions of machine code by kind, and its global accesses by width in bits."""
    mix: Counter[str] = Counter()
    widths: Counter[str] = Counter()
    for line in listing.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None or found[1].startswith(("NOP", "BRA.U")):
            continue
        mix[next((kind for kind, start in KINDS if re.match(start, found[1])), "rest")] += 1
        if found[1].startswith(("LDG", "STG")):
            bits = re.search(r"\.(128|64|U16|U8|S16|S8)\b", found[1])
            widths[f"{found[1][:3].lower()}{bits[1].strip('US') if bits else '32'}"] += 1
    return mix, " ".join(f"{name}x{count}" for name, count in sorted(widths.items()))


def disassembler() -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm")


def describe(case: str, code: Code) -> str:
    """Returns two lines about one compiled kernel."""
    mix = ", ".join(f"{count} {kind}" for kind, count in code.mix.most_common())
    each = "" if code.each is None else f", {code.each:.0f} for each point"
    return (
        f"{case:20s} {code.kernel}  {code.config}\n"
        f"    {code.programs} programs, {code.resident} at once on a multiprocessor; {code.registers} registers, "
        f"{code.stack} bytes of stack, {code.shared} of shared memory; {code.widths}; {code.seconds:.2f} s to compile\n"
        f"    {sum(code.mix.values())} instructions{each}: {mix}" + (f"; loops: {code.loops}" if code.loops else "")
    )


def instructions(expression: str, target: str) -> float | None:
    """Returns the instructions for each element of a kernel that computes an expression of ``a``, ``b`` and ``c``."""
    from ferrite_ir import parse_graph
    from ferrite_runtime import Program
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program

    inputs = ", ".join(f"{name}: f32[{POINTS}]" for name in "abc")
    text = f"graph @f({inputs}) -> (y) {{\n  y: f32[{POINTS}] = loop [i < {POINTS}] {expression}\n}}"
    program = Program.from_mapping(emit_program(schedule(parse_graph(text))).to_mapping())
    return next(compiled_code(program.kernels[0].to_mapping(), target, "none")).each


def print_operations(wanted: str, target: str) -> None:
    """Prints the price and the instructions of operations on float32: names, separated by commas, or ``all``."""
    from ferrite_ir.language.dtypes import F32
    from ferrite_ir.language.ops import OPS, REQUIREMENTS

    added = instructions("add(add(a[i], b[i]), c[i])", target)
    assert added is not None, "a kernel without loops"
    print("operation         price  instructions")
    for name in (each for each in OPS if each not in REQUIREMENTS) if wanted == "all" else wanted.split(","):
        row = OPS[name]
        result = row.result((F32,) * row.arity)
        if isinstance(result, str) or row.arity > 3:
            continue
        operands = [f"{letter}[i]" for letter in "abc"]
        applied = f"{name}({', '.join(operands[: row.arity])})"
        applied = applied if result is F32 else f"cast.f32({applied})"
        for rest in operands[row.arity :]:
            applied = f"add({applied}, {rest})"
        counted = instructions(applied, target)
        own = "loops" if counted is None else f"{counted - added + row.arity - 1:.1f}"
        print(f"{name:16} {row.cost:6} {own:>13}", flush=True)


def main() -> int:
    """Returns 0 unless a kernel does not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="comma separated parts of case names")
    parser.add_argument("--set", default="all", help="as run.py has them")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--policy", default="{}", help="scheduler thresholds to change, as a JSON object")
    parser.add_argument("--emit", type=Path, help="folder to write the kernel specs to, instead of compiling them")
    parser.add_argument("--specs", type=Path, help="folder of kernel specs to compile, instead of cases")
    parser.add_argument("--operations", default="", help="operations of the language to count, instead of cases")
    parser.add_argument("--source", action="store_true", help="print the source of each kernel")
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--tune", choices=("none", "default", "max"), default="none")
    chosen = parser.parse_args()
    if chosen.operations:
        print_operations(chosen.operations, chosen.target)
        return 0
    if chosen.specs:
        found = [
            (path.name.split("~")[0], json.loads(path.read_text())) for path in sorted(chosen.specs.glob("*.json"))
        ]
    else:
        from benchmarks.kernels.case_sets import CASE_SETS

        if chosen.set not in CASE_SETS:
            parser.error(f"no set {chosen.set}; there are {', '.join(CASE_SETS)}")
        names = [part for part in chosen.cases.split(",") if part] or [""]
        found = list(emitted_kernels(CASE_SETS[chosen.set], names, chosen.dtype, json.loads(chosen.policy)))
    if chosen.emit:
        chosen.emit.mkdir(parents=True, exist_ok=True)
        for number, (case, mapping) in enumerate(found):
            (chosen.emit / f"{case}~{number}.json").write_text(json.dumps(mapping))
        print(f"{len(found)} kernel specs in {chosen.emit}")
        return 0
    for case, mapping in found:
        if chosen.source:
            print(mapping["source"])
        for code in compiled_code(mapping, chosen.target, chosen.tune):
            print(describe(case, code), flush=True)
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
