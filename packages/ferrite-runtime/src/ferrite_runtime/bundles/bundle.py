"""Bundles: kernels and programs in one file, with binaries for several GPUs where wanted; see docs/bundle.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ferrite_runtime.bundles.container import pack_container, read_container_file, unpack_container
from ferrite_runtime.bundles.entries import Entry
from ferrite_runtime.errors import FileUnwritable, PackageInvalid, SpecError, VersionUnsupported, naming_file
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.buffer_bounds import check_bounds
from ferrite_runtime.formats.call_steps import While
from ferrite_runtime.formats.code_facts import check_code
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.json_fields import Fields, check_line
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Check, Extern
from ferrite_runtime.formats.target import Target
from ferrite_runtime.kernel_source.allowed_text import check_source

FORMAT = "ferrite-bundle/2"
MINOR = 0
FEATURES = frozenset(("programs", "training", "binaries", "tuning", "user-kernels", "run-time-sizes", "graphs"))
"""What this runtime understands; a bundle that must be understood names what it needs of these."""
FORMS = ("cubin", "hsaco", "ptx")
_NAME = re.compile(r"[A-Za-z0-9._-]*[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """One compiled form of a kernel in a bundle; ``form`` is ``cubin``, ``hsaco`` or ``ptx``, ``blob`` its SHA-256."""

    kernel: str
    config: Config
    target: Target
    aligned: bool
    form: str
    compiler: str
    header: Mapping[str, Any]
    blob: str

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "kernel": self.kernel,
            "config": self.config.to_mapping(),
            "target": str(self.target),
            "aligned": self.aligned,
            "form": self.form,
            "compiler": self.compiler,
            "header": dict(self.header),
            "blob": self.blob,
        }

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Prebuilt:
        """Returns the entry in ``value``; raises `PackageInvalid` naming the field that is wrong."""
        fields = Fields(value, path)
        target = fields.string("target")
        aligned = fields.boolean("aligned")
        entry = cls(
            fields.line("kernel"),
            Config.from_mapping(fields.take("config"), fields.at("config"), free=True),
            _target(target, fields.at("target")),
            aligned,
            fields.choice("form", FORMS),
            fields.line("compiler"),
            _read_header(fields.take("header"), fields.at("header")),
            fields.string("blob"),
        )
        fields.close()
        return entry

    @property
    def order(self) -> tuple[Any, ...]:
        """The place of an entry in the canonical order; configs of one kernel and target stay as they are."""
        return (self.kernel, str(self.target), FORMS.index(self.form), not self.aligned)


def _target(name: str, path: str) -> Target:
    try:
        return Target.parse(name)
    except Exception as error:
        raise SpecError(path, str(error)) from error


MAX_HIDDEN = 16
"""Params that a compiler appends to a kernel's own."""
MAX_PARAM = 4096
"""Bytes of one param."""
_INTEGERS = ("num_warps", "warp_size", "shared", "clusters", "hidden", "scratch")


def _read_header(value: object, path: str) -> dict[str, Any]:
    """Returns the header of a binary, every field checked for type and range."""
    fields = Fields(value, path)
    header: dict[str, Any] = {"entry": fields.line("entry"), "param_sizes": list(fields.integers("param_sizes"))}
    header |= {name: fields.integer(name) for name in _INTEGERS}
    header |= {name: fields.optional_integer(name) for name in ("registers", "local_bytes")}
    header["uses_pdl"] = fields.boolean("uses_pdl", default=False)  # bundles of before do not have it
    fields.close()
    for name, number in header.items():
        numbers = number if isinstance(number, list) else [number]
        if name != "entry" and any(n is not None and not 0 <= n < 1 << 31 for n in numbers):
            raise SpecError(f"{path}.{name}", f"{number} is out of range")
    if header["hidden"] > MAX_HIDDEN or any(size > MAX_PARAM for size in header["param_sizes"]):
        raise SpecError(path, f"no kernel has {header['hidden']} hidden params, or params of {header['param_sizes']}")
    if not 1 <= header["num_warps"] * header["warp_size"] <= 1024:
        raise SpecError(path, f"{header['num_warps']} warps of {header['warp_size']} threads are no program")
    return header


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a bundle.

    Attributes:
        name: for logs.
        kernels: kernels by id.
        programs: programs by name.
        entries: what can be called, by name; the one called ``main`` is what calling a loaded bundle calls.
        binaries: compiled kernels; of one kernel and target the first config is the default.
        tuning: measurements made before the bundle was.
        producer: name and version of what wrote it.
        blobs: contents by SHA-256.
        digest: SHA-256 of all of it, empty for a bundle that was not read from bytes.
    """

    name: str
    kernels: Mapping[str, KernelSpec]
    programs: Mapping[str, Program] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    binaries: tuple[Prebuilt, ...] = ()
    tuning: tuple[Measurement, ...] = ()
    producer: Mapping[str, str] = field(default_factory=dict)
    blobs: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    digest: str = ""

    def __repr__(self) -> str:
        """Returns the name, and how much of what there is; `ferrite-runtime inspect` tells more."""
        counts = {
            "entries": self.entries,
            "programs": self.programs,
            "kernels": self.kernels,
            "binaries": self.binaries,
            "measurements": self.tuning,
        }
        told = ", ".join(f"{len(each)} {name}" for name, each in counts.items())
        return f"Bundle({self.name!r}: {told})"

    # --- writing ----------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Returns the canonical bytes: equal content gives equal bytes, on any machine and day."""
        return pack_container(self._manifest(), {name: bytes(blob) for name, blob in self.blobs.items()})[0]

    def save(self, path: Path | str) -> str:
        """Writes the bundle to a file, aside and renamed; returns its digest.

        Raises:
            FileUnwritable: the folder is not there, may not be written to, or is full.
        """
        data, digest = pack_container(self._manifest(), {name: bytes(blob) for name, blob in self.blobs.items()})
        target = Path(path).resolve()  # of a link: the file that it leads to
        if target.exists() and not target.is_file():
            raise FileUnwritable(path, "it is a folder" if target.is_dir() else "it is no file")
        aside = Path(f"{target}.part")
        try:
            aside.write_bytes(data)
            aside.replace(target)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise FileUnwritable(path, error) from error
        return digest

    def _manifest(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "minor": MINOR,
            "must_understand": sorted(self._features()),
            "name": self.name,
            "producer": dict(self.producer),
            "kernels": [self.kernels[key].to_mapping() for key in sorted(self.kernels)],
            "programs": {name: _without_kernels(program) for name, program in self.programs.items()},
            "entries": {name: entry.to_mapping() for name, entry in self.entries.items()},
            "binaries": [entry.to_mapping() for entry in sorted(self.binaries, key=lambda entry: entry.order)],
            "tuning": [record.to_mapping() for record in self.tuning],
        }

    def _features(self) -> Iterator[str]:
        if self.programs:
            yield "programs"
        if any(variant.backward for entry in self.entries.values() for variant in entry.variants):
            yield "training"
        if any(spec.form == "user" for spec in self.kernels.values()):
            yield "user-kernels"
        if any(map(_learns_sizes, self.programs.values())):
            yield "run-time-sizes"
        if any(program.graphs for program in self.programs.values()):
            yield "graphs"

    # --- reading ----------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path | str) -> Bundle:
        """Returns the bundle in a file; raises as `from_bytes` does, `FileUnreadable` if there is none to be read."""
        with naming_file(path):
            return cls.from_bytes(read_container_file(path))

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """Returns the bundle in some bytes, with every digest and every field checked; nothing of it is run.

        Raises:
            PackageInvalid: naming the field that is wrong.
            VersionUnsupported: if it needs a newer runtime.
        """
        manifest, blobs, digest = unpack_container(data)
        try:
            return _read_manifest(manifest, blobs, digest)
        except (PackageInvalid, VersionUnsupported):
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
            # A field that no reader above looked at closely enough; whatever it is, the bundle is at fault.
            raise PackageInvalid(
                f"the manifest of this bundle does not read: {type(error).__name__}: {error}"
            ) from error

    def with_binaries(self, added: Iterable[tuple[Prebuilt, bytes]]) -> Bundle:
        """Returns the bundle with more binaries."""
        pairs = list(added)
        blobs = {**self.blobs, **{entry.blob: code for entry, code in pairs}}
        return replace(self, binaries=(*self.binaries, *(entry for entry, _ in pairs)), blobs=blobs, digest="")

    def binary(self, entry: Prebuilt) -> Binary:
        """Returns a compiled kernel of the bundle."""
        code = bytes(self.blobs[entry.blob])
        return Binary.from_header(dict(entry.header), code)


def _without_kernels(program: Program) -> dict[str, Any]:
    return {**program.to_mapping(), "kernels": [spec.id for spec in program.kernels]}


def _read_manifest(manifest: dict[str, Any], blobs: Mapping[str, memoryview], digest: str) -> Bundle:
    fields = Fields(manifest, "")
    form = fields.take("format", None)
    if form != FORMAT:
        raise VersionUnsupported(f"format: {str(form)[:40]!r} is unknown; this runtime reads {FORMAT}")
    minor = fields.integer("minor")
    if minor < 0:
        raise SpecError("minor", f"there is no version {minor}")
    unknown = [name for name in fields.strings("must_understand") if name not in FEATURES]
    if unknown:
        raise VersionUnsupported(f"must_understand: this runtime knows nothing of {', '.join(unknown)[:200]}")
    kernels = _read_kernels(fields)
    bundle = Bundle(
        name=fields.line("name"),
        producer=_read_strings(fields, "producer"),
        kernels=kernels,
        programs={name: _read_program(name, value, kernels) for name, value in _objects(fields, "programs")},
        entries={name: Entry.from_mapping(value, f"entries.{name}") for name, value in _objects(fields, "entries")},
        binaries=tuple(Prebuilt.from_mapping(v, f"binaries[{i}]") for i, v in enumerate(fields.array("binaries"))),
        tuning=tuple(Measurement.from_mapping(v, f"tuning[{i}]") for i, v in enumerate(fields.array("tuning"))),
        blobs=blobs,
        digest=digest,
    )
    if minor <= MINOR:
        fields.close()
    _check_references(bundle)
    return bundle


def _read_strings(fields: Fields, name: str) -> dict[str, str]:
    inner = Fields(fields.take(name), name)
    return {check_line(key, name): inner.line(key) for key in inner.names()}


def _objects(fields: Fields, name: str) -> Iterator[tuple[str, Any]]:
    inner = Fields(fields.take(name), name)
    for key in inner.names():
        if (
            not key
            or len(key) > 200
            or not key.isascii()
            or not key.replace(".", "").replace("_", "").replace("-", "").isalnum()
        ):
            raise SpecError(name, f"{key[:60]!a} is not a name: letters, digits, '.', '_' and '-' are allowed")
        if ".." in key or key.startswith("."):
            raise SpecError(name, f"{key[:60]!r} is not a name: it looks like a path")
        yield key, inner.take(key)


def _read_kernels(fields: Fields) -> dict[str, KernelSpec]:
    kernels: dict[str, KernelSpec] = {}
    for position, value in enumerate(fields.array("kernels")):
        path = f"kernels[{position}]"
        spec = KernelSpec.from_mapping(value, path)
        check_source(spec, f"{path}.source")
        if spec.id in kernels:
            raise SpecError(path, "this kernel stands here twice")
        kernels[spec.id] = spec
    return kernels


def _learns_sizes(program: Program) -> bool:
    """Tells whether a program has steps that bind sizes of results, or check sizes."""
    return any(
        isinstance(step, Check)
        or (isinstance(step, Extern) and step.binds)
        or (isinstance(step, While) and step.turns is not None)
        for _, step in program.all_steps()
    )


def _read_program(name: str, value: Any, kernels: Mapping[str, KernelSpec]) -> Program:
    path = f"programs.{name}"
    listed = Fields(value, path).strings("kernels")
    missing = [key for key in listed if key not in kernels]
    if missing:
        raise SpecError(f"{path}.kernels", f"the bundle has no kernel {missing[0][:64]!r}")
    program = Program.from_parts(value, [kernels[key] for key in listed], path)
    check_bounds(program, path)
    return program


def _check_references(bundle: Bundle) -> None:
    for position, entry in enumerate(bundle.binaries):
        path = f"binaries[{position}]"
        if entry.kernel not in bundle.kernels:
            raise SpecError(f"{path}.kernel", "the bundle has no such kernel")
        if entry.blob not in bundle.blobs:
            raise SpecError(f"{path}.blob", "the bundle has no such blob")
        if len(entry.header["param_sizes"]) not in (
            0,
            len(bundle.kernels[entry.kernel].params) + entry.header["hidden"],
        ):
            raise SpecError(f"{path}.header.param_sizes", "not one size for each param")
        code = bytes(bundle.blobs[entry.blob])
        check_code(bundle.kernels[entry.kernel], entry.target, entry.form, entry.header, code, path)
    used = {entry.blob for entry in bundle.binaries}
    for name, callable_entry in bundle.entries.items():
        callable_entry.check(bundle.programs, bundle.blobs, f"entries.{name}")
        used |= {weight.blob for weight in callable_entry.weights if weight.blob}
    unused = sorted(set(bundle.blobs) - used)
    if unused:
        raise PackageInvalid(f"blobs: nothing refers to {unused[0]}")


@functools.cache
def producer_version() -> str:
    """Returns the version of this runtime."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ferrite-runtime")
    except PackageNotFoundError:
        return "0.1.0"
