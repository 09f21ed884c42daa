"""Kernel specs, format 2: the value that a kernel's writer and its runner share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

from ferrite_runtime.errors import IdentityMismatch, SpecError, UnknownFormat
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expressions import Expr, evaluate, expr_names, read_expr, write_expr
from ferrite_runtime.formats.facts import Facts, SpecForm, spec_forms
from ferrite_runtime.formats.json_fields import Fields, check_identifier, check_integer, check_text

FORMAT = 2
USER = "user"
MIXED_COMBO = "mixed_combo"
"""The form of kernels whose parts have forms of their own."""
ROLES = ("tensor", "size", "scalar")
SCRATCH = "scratch"
"""The access of a param in whose memory the programs of a kernel have what its compiler puts there: descriptors."""
ACCESSES = ("read", "write", "readwrite", "atomic", SCRATCH)
AXIS_KINDS = ("grid", "reduction", "rounds", "descriptors")
MAX_ALIGN = 4096
"""Bytes that a pointer can be promised to be a multiple of, and what a size can."""
BUCKETS = ("divisor", "value")
"""What of a size a build and a config of a person's kernel depend on: what divides it, or the very value."""
Grid: TypeAlias = tuple[Expr, Expr, Expr]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel function.

    Attributes:
        name, role, dtype: what it is called, what it is, and of which type.
        access: what a kernel does with a tensor; None for numbers.
        align: bytes that the address of a tensor is a multiple of; of a size, what every value is a multiple of, None
            where nothing is promised.
        hint: the expected value of a size.
        bucket: what of a size a build and a config depend on, where a person's kernel says so.
        elements, each: of scratch memory, how many a launch gives at least, and how many a program takes.
    """

    name: str
    role: str
    dtype: str
    access: str | None = None
    align: int | None = None
    hint: int | None = None
    bucket: str | None = None
    elements: int | None = None
    each: int | None = None

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Param:
        """Returns the param in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        name, role, dtype = fields.identifier("name"), fields.choice("role", ROLES), fields.string("dtype")
        if dtype not in DTYPES or DTYPES[dtype].triton is None:
            raise SpecError(fields.at("dtype"), f"{dtype!r} is not a type that kernels compute with")
        access = align = hint = bucket = elements = each = None
        if role == "tensor":
            access, align = fields.choice("access", ACCESSES), fields.integer("align")
            if access == SCRATCH:
                elements, each = fields.integer("elements"), fields.integer("each")
                if not 1 <= each <= elements:
                    raise SpecError(fields.at("each"), f"{each} is not between 1 and {elements}")
        elif role == "size":
            hint, align = fields.optional_integer("hint"), fields.optional_integer("align")
            bucket = fields.choice("bucket", BUCKETS) if "bucket" in fields.names() else None
            if dtype not in ("i32", "i64"):
                raise SpecError(fields.at("dtype"), f"a size is i32 or i64, not {dtype}")
        elif role == "scalar" and DTYPES[dtype].pack is None:
            raise SpecError(fields.at("dtype"), f"{dtype} cannot be passed by value")
        if align is not None and (align <= 0 or align & (align - 1) or align > MAX_ALIGN):
            raise SpecError(fields.at("align"), f"{align} is not a power of two, up to {MAX_ALIGN}")
        fields.close()
        return cls(name, role, dtype, access, align, hint, bucket, elements, each)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        mapping: dict[str, Any] = {"name": self.name, "role": self.role, "dtype": self.dtype}
        given = {"access": self.access, "align": self.align, "hint": self.hint, "bucket": self.bucket}
        given |= {"elements": self.elements, "each": self.each}
        return mapping | {field: value for field, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a kernel's iteration space; ``hint`` is its expected size, ``block`` its block constant.

    An axis of the kind ``rounds`` has no points of its own: its block says how many tiles a program takes. That of the
    kind ``descriptors`` has none either: blocks are loaded by pointers with a block of 1, through descriptors with 2.
    """

    name: str
    kind: str
    size: Expr
    hint: int
    block: str
    max_block: int | None = None

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Axis:
        """Returns the axis in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        axis = cls(
            name=fields.identifier("name"),
            kind=fields.choice("kind", AXIS_KINDS),
            size=read_expr(fields.take("size"), fields.at("size")),
            hint=fields.integer("hint"),
            block=fields.identifier("block"),
            max_block=fields.optional_integer("max_block"),
        )
        if not axis.block.isupper():  # the runtime's own names beside it in host functions are lower case
            raise SpecError(fields.at("block"), f"{axis.block!r} is no block constant: XBLOCK and the like")
        if isinstance(axis.size, int) and axis.size < 0:
            raise SpecError(fields.at("size"), f"{axis.size} is negative")
        if axis.max_block is not None and axis.max_block < 1:
            raise SpecError(fields.at("max_block"), f"{axis.max_block} is less than 1")
        fields.close()
        return axis

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        mapping = {"name": self.name, "kind": self.kind, "size": write_expr(self.size), "hint": self.hint}
        mapping["block"] = self.block
        if self.max_block is not None:
            mapping["max_block"] = self.max_block
        return mapping


@dataclass(frozen=True, slots=True)
class KernelPart:
    """A part of a mixed combo, as if it were a kernel alone; in the whole, names of axes and blocks end in its number.

    Attributes:
        form: its form.
        copies: how often it is done, each time with other params, by as many programs.
        params: names of the tensors and scalars that it uses, those of all copies.
        axes, blocks, grid, facts: what a spec says of a kernel.
    """

    form: str
    copies: int
    params: tuple[str, ...]
    axes: tuple[Axis, ...]
    blocks: Mapping[str, int]
    grid: Expr
    facts: Facts

    @classmethod
    def from_mapping(cls, value: object, path: str) -> KernelPart:
        """Returns the part in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        form = fields.choice("form", tuple(form.name for form in spec_forms().values() if form.joins))
        part = cls(
            form=form,
            copies=fields.integer("copies"),
            params=fields.strings("params"),
            axes=tuple(Axis.from_mapping(v, f"{fields.at('axes')}[{i}]") for i, v in enumerate(fields.array("axes"))),
            blocks=_read_blocks(fields),
            grid=read_expr(fields.take("grid"), fields.at("grid")),
            facts=spec_forms()[form].read_facts(fields.take("facts"), fields.at("facts")),
        )
        fields.close()
        if part.copies < 1:
            raise SpecError(fields.at("copies"), f"{part.copies} is less than 1")
        return part

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "form": self.form,
            "copies": self.copies,
            "params": list(self.params),
            "axes": [axis.to_mapping() for axis in self.axes],
            "blocks": dict(self.blocks),
            "grid": write_expr(self.grid),
            "facts": self.facts.to_mapping(),
        }


def name_in_whole(name: str, number: int) -> str:
    """Returns what an axis or a block constant of a part is called in the kernel: ``XBLOCK_2``."""
    return f"{name}_{number}"


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel: its source, how it is called, and the facts that a config policy needs.

    ``blocks`` holds the block constants that the source fixes, ``facts`` is the record of the kernel's form.
    Kernels of the form ``user``, which people wrote, state the ``configs`` to try and may have a grid of three axes:
    one, or with ``grids`` one for each config.
    Those of the form ``mixed_combo`` have ``parts``.
    """

    name: str
    id: str
    source: str
    form: str
    params: tuple[Param, ...]
    axes: tuple[Axis, ...]
    blocks: Mapping[str, int]
    grid: Expr
    mutated: tuple[str, ...]
    index_width: int
    facts: Facts
    origin: tuple[str, ...]
    configs: tuple[Config, ...] = ()
    grid_y: Expr = 1
    grid_z: Expr = 1
    grids: tuple[Grid, ...] = ()
    parts: tuple[KernelPart, ...] = ()

    @classmethod
    def from_mapping(cls, value: object, path: str = "") -> KernelSpec:
        """Returns the kernel spec in ``value``, checked.

        Raises:
            UnknownFormat, UnknownField, IdentityMismatch, SpecError: naming the field under ``path``.
        """
        fields = Fields(value, path)
        version = fields.take("format")
        if version != FORMAT or isinstance(version, bool):
            raise UnknownFormat(
                fields.at("format"), f"kernel spec format {version!r} is unknown; this runtime reads {FORMAT}"
            )
        form = fields.choice("form", tuple(spec_forms()))
        spec = cls(
            name=fields.identifier("name"),
            id=fields.string("id"),
            source=fields.string("source"),
            form=form,
            params=tuple(
                Param.from_mapping(v, f"{fields.at('params')}[{i}]") for i, v in enumerate(fields.array("params"))
            ),
            axes=tuple(Axis.from_mapping(v, f"{fields.at('axes')}[{i}]") for i, v in enumerate(fields.array("axes"))),
            blocks=_read_constants(fields) if form == USER else _read_blocks(fields),
            grid=read_expr(fields.take("grid"), fields.at("grid")),
            mutated=fields.strings("mutated"),
            index_width=fields.integer("index_width"),
            facts=spec_forms()[form].read_facts(fields.take("facts"), fields.at("facts")),
            origin=fields.strings("origin"),  # each one line: listings and errors quote it
            **(_read_user_fields(fields) if form == USER else {}),
            **(_read_parts(fields) if form == MIXED_COMBO else {}),
        )
        fields.close()
        _check_names(spec, fields)
        if form == MIXED_COMBO:
            _check_parts(spec, fields)
        expected = kernel_id(spec.to_mapping())
        if spec.id != expected:
            raise IdentityMismatch(fields.at("id"), f"kernel {spec.name} claims {spec.id}, its content is {expected}")
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; reading it gives an equal spec."""
        return {
            "format": FORMAT,
            "name": self.name,
            "id": self.id,
            "source": self.source,
            "form": self.form,
            "params": [param.to_mapping() for param in self.params],
            "axes": [axis.to_mapping() for axis in self.axes],
            "blocks": dict(self.blocks),
            "grid": write_expr(self.grid),
            "mutated": list(self.mutated),
            "index_width": self.index_width,
            "facts": self.facts.to_mapping(),
            "origin": list(self.origin),
            **self._user_mapping(),
            **({"parts": [part.to_mapping() for part in self.parts]} if self.parts else {}),
        }

    def _user_mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        if self.configs:
            mapping["configs"] = [config.to_mapping() for config in self.configs]
        mapping |= {name: write_expr(e) for name, e in (("grid_y", self.grid_y), ("grid_z", self.grid_z)) if e != 1}
        return mapping | ({"grids": [list(map(write_expr, grid)) for grid in self.grids]} if self.grids else {})

    @property
    def known_form(self) -> SpecForm:
        """Returns what is known of its form."""
        return spec_forms()[self.form]

    @property
    def alone(self) -> tuple[KernelSpec, ...]:
        """Returns the parts of a mixed combo as kernels of their own, without text; of another kernel, itself."""
        if not self.parts:
            return (self,)
        return tuple(
            replace(
                self,
                form=part.form,
                params=tuple(param for param in self.params if param.name in part.params or param.role == "size"),
                axes=part.axes,
                blocks=part.blocks,
                grid=part.grid,
                mutated=tuple(name for name in self.mutated if name in part.params),
                facts=part.facts,
                source="",
                parts=(),
            )
            for part in self.parts
        )

    def of_part(self, values: Mapping[str, int], number: int) -> dict[str, int]:
        """Returns those of the values of a kernel's axes, or block constants, that are a part's own, by its names."""
        if not self.parts:
            return dict(values)
        part = self.parts[number]
        names = [name for axis in part.axes for name in (axis.name, axis.block)]
        return {name: values[whole] for name in names if (whole := name_in_whole(name, number)) in values}

    @property
    def scratch(self) -> Param | None:
        """Returns the param that is scratch memory of the kernel's programs, None of a kernel without."""
        return next((param for param in self.params if param.access == SCRATCH), None)

    def size_names(self) -> tuple[str, ...]:
        """Returns the names of the size params, in order."""
        return tuple(param.name for param in self.params if param.role == "size")

    def axis_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Returns the size of every axis when the size params have the values ``sizes``."""
        return {axis.name: evaluate(axis.size, sizes) for axis in self.axes}

    def hint_sizes(self) -> dict[str, int]:
        """Returns the expected size of every axis: exact where it is constant, the hint elsewhere."""
        return {axis.name: axis.size if isinstance(axis.size, int) else axis.hint for axis in self.axes}

    def expected_programs(self, blocks: Mapping[str, int]) -> int:
        """Returns the number of programs of a launch with these block constants and the expected size params."""
        return self.programs({param.name: param.hint or 1 for param in self.params if param.role == "size"}, blocks)

    def programs(self, sizes: Mapping[str, int], blocks: Mapping[str, int]) -> int:
        """Returns the number of programs of a launch with these size params and block constants."""
        values = {**sizes, **self.axis_sizes(sizes), **self.blocks, **blocks}
        return evaluate(self.grid_at(blocks)[0], values)

    def grid_at(self, blocks: Mapping[str, Any]) -> Grid:
        """Returns the grid of launches with these block constants, which are those of a config."""
        for config, grid in zip(self.configs, self.grids, strict=False):
            if dict(config.blocks) == dict(blocks):
                return grid
        return self.grid, self.grid_y, self.grid_z

    @property
    def is_flat(self) -> bool:
        """Tells whether launches are one-dimensional: all but some that people wrote are."""
        return self.grid_y == 1 and self.grid_z == 1 and all(grid[1:] == (1, 1) for grid in self.grids)

    def depths(self, sizes: Mapping[str, int], blocks: Mapping[str, int]) -> tuple[int, int]:
        """Returns the programs along the second and the third axis of a launch."""
        if self.is_flat:
            return 1, 1
        values = {**sizes, **self.axis_sizes(sizes), **self.blocks, **blocks}
        _, grid_y, grid_z = self.grid_at(blocks)
        return evaluate(grid_y, values), evaluate(grid_z, values)


def _read_parts(fields: Fields) -> dict[str, Any]:
    path = fields.at("parts")
    return {"parts": tuple(KernelPart.from_mapping(v, f"{path}[{i}]") for i, v in enumerate(fields.array("parts")))}


def _check_parts(spec: KernelSpec, fields: Fields) -> None:
    """Checks that a kernel has the axes and the blocks of its parts, and that these use its params."""
    names = {param.name for param in spec.params}
    for number, part in enumerate(spec.parts):
        for name in part.params:
            if name not in names:
                raise SpecError(f"{fields.at('parts')}[{number}].params", f"{name!r} is no param of the kernel")
    axes = tuple(
        replace(axis, name=name_in_whole(axis.name, number), block=name_in_whole(axis.block, number))
        for number, part in enumerate(spec.parts)
        for axis in part.axes
    )
    if axes != spec.axes:
        raise SpecError(fields.at("axes"), "the axes of a mixed combo are those of its parts, with their numbers")
    blocks = {name_in_whole(k, number): v for number, part in enumerate(spec.parts) for k, v in part.blocks.items()}
    if blocks != spec.blocks:
        raise SpecError(fields.at("blocks"), "the blocks of a mixed combo are those of its parts, with their numbers")


def _read_blocks(fields: Fields) -> dict[str, int]:
    path = fields.at("blocks")
    inner = Fields(fields.take("blocks"), path)
    names = list(inner.names())
    blocks = {name: inner.integer(name) for name in names}
    for name, block in blocks.items():
        check_identifier(name, path)
        if block < 1 or block & (block - 1):
            raise SpecError(f"{path}.{name}", f"{block} is not a power of two")
    return blocks


def _read_constants(fields: Fields) -> dict[str, Any]:
    """Returns the constants that a person's kernel fixes: numbers, flags and names."""
    path = fields.at("blocks")
    inner = Fields(fields.take("blocks"), path)
    values = {name: inner.take(name) for name in list(inner.names())}
    for name, value in values.items():
        check_identifier(name, path)
        if isinstance(value, dict):
            read_type(value, f"{path}.{name}")
        elif isinstance(value, str):
            check_text(value, f"{path}.{name}")
        elif isinstance(value, int) and not isinstance(value, bool):
            check_integer(value, f"{path}.{name}")
        elif not isinstance(value, (float, bool)) and value is not None:
            raise SpecError(f"{path}.{name}", f"a constant is a number, a flag, a name or a type, not {value!r}")
    return values


def read_type(value: Mapping[str, Any], path: str) -> str:
    """Returns the dtype of a constant ``{"dtype": "bf16"}``: a type of the language of kernels.

    Raises:
        SpecError: it is none.
    """
    fields = Fields(value, path)
    name = fields.string("dtype")
    fields.close()
    if name not in DTYPES or DTYPES[name].triton is None:
        raise SpecError(f"{path}.dtype", f"{name!r} is not a type that kernels compute with")
    return name


def _read_user_fields(fields: Fields) -> dict[str, Any]:
    path, grids_path = fields.at("configs"), fields.at("grids")
    configs, grids = fields.array("configs", []), fields.array("grids", [])
    if grids and len(grids) != len(configs):
        raise SpecError(grids_path, f"{len(grids)} grids for {len(configs)} configs")
    return {
        "configs": tuple(Config.from_mapping(v, f"{path}[{i}]", free=True) for i, v in enumerate(configs)),
        "grid_y": read_expr(fields.take("grid_y", 1), fields.at("grid_y")),
        "grid_z": read_expr(fields.take("grid_z", 1), fields.at("grid_z")),
        "grids": tuple(_read_grid(grid, f"{grids_path}[{i}]") for i, grid in enumerate(grids)),
    }


def _read_grid(value: object, path: str) -> Grid:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise SpecError(path, f"{value!r} is not a grid of three axes")
    x, y, z = (read_expr(axis, f"{path}[{position}]") for position, axis in enumerate(value))
    return x, y, z


def _check_names(spec: KernelSpec, fields: Fields) -> None:
    names = [param.name for param in spec.params]
    if len(set(names)) != len(names):
        raise SpecError(fields.at("params"), "two params have one name")
    scratch = [param for param in spec.params if param.access == SCRATCH]
    counted = (*(axis.size for axis in spec.axes), spec.grid, spec.grid_y, spec.grid_z, *chain(*spec.grids))
    is_sized = any(name in spec.size_names() for expr in counted for name in expr_names(expr))
    if len(scratch) > 1 or (scratch and is_sized):
        raise SpecError(fields.at("params"), "scratch memory is one param, of a kernel whose grid takes no sizes")
    if len({axis.name for axis in spec.axes}) != len(spec.axes):
        raise SpecError(fields.at("axes"), "two axes have one name")
    tensors = {param.name for param in spec.params if param.role == "tensor"}
    for name in spec.mutated:
        if name not in tensors:
            raise SpecError(fields.at("mutated"), f"{name!r} is not a tensor param")
    if spec.index_width not in (32, 64):
        raise SpecError(fields.at("index_width"), f"{spec.index_width} is neither 32 nor 64")
    sizes = set(spec.size_names())
    for position, axis in enumerate(spec.axes):
        for name in expr_names(axis.size):
            if name not in sizes:
                raise SpecError(f"{fields.at('axes')}[{position}].size", f"{name!r} is not a size param")
    fixed = {name for name, value in spec.blocks.items() if type(value) is int}
    known = (
        sizes | {axis.name for axis in spec.axes} | {axis.block for axis in spec.axes if axis.block not in spec.blocks}
    )
    known |= fixed
    for config in spec.configs:
        known |= {name for name, _ in config.blocks}
    grids = ((spec.grid, spec.grid_y, spec.grid_z), *spec.grids)
    for name in (name for grid in grids for axis in grid for name in expr_names(axis)):
        if name not in known:
            raise SpecError(fields.at("grid"), f"{name!r} is neither a size param, an axis nor a block constant")
