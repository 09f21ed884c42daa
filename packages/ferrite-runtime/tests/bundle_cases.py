"""Bundles that the tests share, and ways to spoil them."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ferrite_runtime.bundles.bundle import Bundle, Prebuilt
from ferrite_runtime.bundles.container import MAGIC, pack_container, unpack_container
from ferrite_runtime.bundles.entries import Entry, Variant, Weight
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.code_facts import param_bytes
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.target import Target
from runtime_kernels import layout, pointwise, program, tensor_input

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER / "example.ferrite"
REGRESSION = FOLDER / "regression.ferrite"

ARGUMENTS = {"tuple": [{"tuple": [{"tensor": 0}]}, {"dict": []}]}


def add_bundle(device: str = "cuda", size: int = 1000, targets: tuple[str, ...] = ("sm_90",)) -> Bundle:
    """A bundle of one program: input + weight + constant."""
    kernel = pointwise("a + b + c", inputs=3, size=size)
    mapping = program(
        [tensor_input(name, [size], device=device) for name in ("x", "w", "k")],
        [kernel],
        [
            {"do": "alloc", "name": "out", **layout([size])},
            {"do": "launch", "kernel": kernel["id"], "args": ["x", "w", "k", "out"]},
        ],
        [{"value": "out"}],
        device,
    )
    read = Program.from_mapping(mapping)
    data = b"\0\0\x80?" * size
    blob = hashlib.sha256(data).hexdigest()
    weights = (
        Weight("layer.w", "parameter", Layout("f32", (size,), (1,))),
        Weight("ones", "constant", Layout("f32", (size,), (1,)), blob),
    )
    variant = Variant(targets, "main.inference", (("tensor", 0), ("weight", 0), ("weight", 1)))
    return Bundle(
        "add",
        {spec.id: spec for spec in read.kernels},
        {"main.inference": read},
        {"main": Entry(ARGUMENTS, 1, {"tensor": 0}, 1, weights, (variant,))},
        producer={"name": "tests", "version": "1"},
        blobs={blob: data},
    )


def fake_binary(spec: KernelSpec, config: Config, target: str, *, aligned: bool = True, form: str = "cubin"):
    """A binary as `FakeDriver` takes it, with its entry in a bundle."""
    content = json.dumps({"spec": spec.to_mapping(), "config": config.to_mapping(), "aligned": aligned, "for": target})
    built = Target.parse(target)
    sizes = [*(param_bytes(param) for param in spec.params), 8, 8]
    form = form if built.backend == "cuda" else "hsaco"
    code = fake_code(form, spec.name, built, config.num_warps * built.warp_size, sizes) + content.encode()
    binary = Binary(code, spec.name, config.num_warps, built.warp_size, 0, hidden=2)
    blob = hashlib.sha256(binary.code).hexdigest()
    entry = Prebuilt(spec.id, config, Target.parse(target), aligned, form, "triton 0", binary.header(), blob)
    return entry, binary.code


def fake_code(form: str, entry: str, target: Target, threads: int, sizes: Sequence[int]) -> bytes:
    """What the runtime reads of code without a GPU, and no code: a file with the right headers."""
    if form == "ptx":
        params = ", ".join(f".param .b{8 * size} {entry}_param_{n}" for n, size in enumerate(sizes))
        return f".target {target}\n.visible .entry {entry}({params})\n.reqntid {threads}\n{{\n}}\n".encode()
    if form == "hsaco":
        return _fake_elf(224, 0, {".strtab": f"\0{entry}.kd\0".encode()})
    attributes = struct.pack("<BBHIII", 4, 0x10, 12, threads, 1, 1)
    attributes += b"".join(
        struct.pack("<BBHIHHI", 4, 0x17, 12, 0, n, 8 * n, size << 18) for n, size in enumerate(sizes)
    )
    return _fake_elf(190, int(target.arch), {f".nv.info.{entry}": attributes, f".text.{entry}": b"\0" * 16})


def _fake_elf(machine: int, flags: int, contents: dict[str, bytes]) -> bytes:
    names = b"\0" + b"".join(f"{name}\0".encode() for name in (".shstrtab", *contents))
    contents = {".shstrtab": names, **contents}
    table, position = b"", 64 + 64 * len(contents)
    for name, content in contents.items():
        where = names.index(f"\0{name}\0".encode()) + 1
        table += struct.pack("<IIQQQQIIQQ", where, 1, 0, 0, position, len(content), 0, 0, 1, 0)
        position += len(content)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64, flags, 64, 0, 0, 64, len(contents), 0)
    return head + table + b"".join(contents.values())


def with_fake_binaries(bundle: Bundle, *targets: str) -> Bundle:
    added = []
    for spec in bundle.kernels.values():
        for target in targets:
            added += [fake_binary(spec, Config.of({"XBLOCK": block}, 4), target) for block in (256, 512)]
            added.append(fake_binary(spec, Config.of({"XBLOCK": 256}, 4), target, aligned=False))
    return bundle.with_binaries(added)


def reseal(manifest: dict[str, Any], blobs: dict[str, bytes]) -> bytes:
    return pack_container(manifest, blobs)[0]


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    manifest, blobs, _ = unpack_container(data)
    return manifest, {name: bytes(blob) for name, blob in blobs.items()}


# --- spoiling -------------------------------------------------------------------------------------------------------

WRONG = (
    None, True, -1, 2**31, 2**63, 10**40, 1.5, "", "..", "../../etc/passwd", "/abs", "a" * 100_000, "\0", [], [[]], {},
    {"tensor": 10**9}, [1, 2, 3], "0" * 64, {"__class__": "os"}, "import os",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    pending = [(value, path)]
    while pending:
        current, where = pending.pop()
        if where:
            yield where
        listed = dict(enumerate(current)) if isinstance(current, list) else current
        items = listed if isinstance(listed, dict) else {}
        pending += [(item, (*where, key)) for key, item in items.items()]


def spoil(data: bytes, chance: random.Random) -> bytes:
    """Returns a bundle's bytes with one thing wrong, half of the time under a digest that matches."""
    kind = chance.randrange(8)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    if kind == 1:
        position = chance.randrange(len(data))
        return data[:position] + bytes([data[position] ^ (1 << chance.randrange(8))]) + data[position + 1 :]
    if kind == 2:
        return _spoil_frame(data, chance)
    manifest, blobs = opened(data)
    where = chance.choice(list(places(manifest)))
    parent = manifest
    for key in where[:-1]:
        parent = parent[key]
    if kind == 3:
        del parent[where[-1]]
    elif kind == 4 and isinstance(parent, dict):
        parent[chance.choice(["extra", "../x", "", "format"])] = chance.choice(WRONG)
    else:
        parent[where[-1]] = chance.choice(WRONG)
    return reseal(manifest, blobs)


def _spoil_frame(data: bytes, chance: random.Random) -> bytes:
    """Spoils what stands around the manifest, the digest being right."""
    body = data[data.index(b"\n", len(MAGIC)) + 66 :]
    count, _, rest = body.partition(b"\n")
    size = int(count)
    text, blobs = rest[:size], rest[size:]
    body = chance.choice([
        b"%d\n" % (size + chance.randrange(1, 10**6)) + rest,
        b"%d\n" % 10**18 + rest,
        b"-%d\n" % size + rest,
        b"0%d\n" % size + rest,
        b"%d\n" % size + text + blobs + b"more",
        b"%d\n" % size + text + blobs[:-1],
        b"%d\n" % (size + 1) + text.replace(b":", b": ", 1) + blobs,
        b"%d\n" % (size * 2 + 1) + text + b"," + text + blobs,
        b"%d\n" % 200_000 + b"[" * 200_000,
        b"%d\n" % 5 + b'{"a":' + blobs,
        b"%d\n" % 3 + b"NaN" + blobs,
        b"%d\n" % 9000 + b"9" * 9000,
        b"",
    ])  # fmt: skip
    return MAGIC + b"1\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
