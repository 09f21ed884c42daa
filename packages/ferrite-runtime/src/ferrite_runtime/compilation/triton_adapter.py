"""Everything that depends on the version of Triton: one job in, one binary out.

Seen to work with 3.6 to 3.9. What differs between them: the name and number of hidden trailing parameters (counted
from the PTX), the default of ``enable_fp_fusion`` (always given), and metadata fields (read with defaults).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.compilation.compiler_messages import explain_failure, without_output
from ferrite_runtime.compilation.packed_additions import split_packed_additions
from ferrite_runtime.errors import compile_failure
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.code_facts import ptx_param_sizes
from ferrite_runtime.formats.config import DESCRIPTORS, Config
from ferrite_runtime.formats.cubin import read_resources
from ferrite_runtime.formats.divisors import Divisors
from ferrite_runtime.formats.dtypes import DTYPES, scalar_triton
from ferrite_runtime.formats.facts import spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.formats.target import Target
from ferrite_runtime.kernel_source.jitted import choose_constants, load_function
from ferrite_runtime.launching.dependent_launch import waits_itself


@dataclass(frozen=True, slots=True)
class Job:
    """One compilation: a kernel, a config, a target, and what is promised.

    ``aligned``: pointers keep their alignment. ``wants_ptx`` asks for PTX, which a driver compiles for GPUs that are
    newer than the target, instead of code. ``divisors``: what divides size params.
    """

    spec: KernelSpec
    config: Config
    target: Target
    aligned: bool = True
    wants_ptx: bool = False
    divisors: Divisors = ()

    @property
    def blocks(self) -> dict[str, int]:
        """The block constants: of memory that may lie anywhere no descriptors are made."""
        blocks = dict(self.config.blocks)
        return blocks if self.aligned or DESCRIPTORS not in blocks else blocks | {DESCRIPTORS: 1}

    @property
    def uses_pdl(self) -> bool:
        """Whether the kernel is to wait itself for what comes before it, if it can."""
        return self.target.backend == "cuda" and waits_itself(self.spec)


# Of a pointer, a promise of less gains nothing over the element type.
_PROMISE = 16


def triton_signature(params: tuple[Param, ...], constants: tuple[str, ...]) -> dict[str, str]:
    """Returns the types of all parameters of a kernel function, constants included, as Triton writes them."""
    signature = {param.name: _type_text(param) for param in params}
    return signature | dict.fromkeys(constants, "constexpr")


def _type_text(param: Param) -> str:
    return f"*{DTYPES[param.dtype].triton}" if param.role == "tensor" else scalar_triton(param.dtype)


def triton_attributes(
    params: tuple[Param, ...], *, aligned: bool, divisors: Divisors = (), positions: Sequence[int] | None = None
) -> dict[tuple[int, ...], list[list[Any]]]:
    """Returns the divisibility promises of pointers and of the sizes at some positions, by position.

    ``positions`` has the position of each param among the function's parameters, where constants stand between them.
    """
    promised = dict(divisors)
    for position, param in enumerate(params):
        if param.role == "size" and param.align is not None and param.align > 1:
            promised[position] = min(param.align, _PROMISE)
        if aligned and param.role == "tensor" and (param.align or 0) >= _PROMISE:
            promised[position] = _PROMISE
    found = {position if positions is None else positions[position]: promise for position, promise in promised.items()}
    return {(position,): [["tt.divisibility", promise]] for position, promise in sorted(found.items())}


def prepare_worker() -> None:
    """Imports all that the first job would wait for, in a process that keeps nothing in Triton's cache.

    A third of a second of that wait is a digest of Triton itself, its library included: a part of the key of a cache
    that a worker empties after each job. A name does as well there. Triton's own workers replace the function too.
    """
    import triton.compiler.code_generator
    import triton.runtime.cache

    import ferrite_runtime.fmath  # noqa: F401  # what kernels import

    spec_forms()  # what reading a spec imports
    name = f"triton {triton.__version__}"
    triton.runtime.cache.triton_key = lambda: name


def is_interpreting() -> bool:
    """Tells whether functions of this process are made for Triton's interpreter, which its compiler does not take.

    ``TRITON_INTERPRET=1`` turns every ``@triton.jit`` into such a function where it is imported, those of Triton's own
    library included; taking the variable back later does not turn them back.
    """
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return bool(triton.knobs.runtime.interpret) or not isinstance(tl.sum, JITFunction)


def compile_job(job: Job) -> Binary:
    """Returns the compiled kernel of ``job``; needs no GPU, and a process that does not interpret.

    Raises:
        KernelCompileError: with the compiler's message, the cause first.
    """
    spec = job.spec
    if is_interpreting():
        reason = "TRITON_INTERPRET is set, and has Triton interpret all functions of this process; unset it"
        raise compile_failure(spec, reason)
    function = load_function(spec)
    constants = choose_constants(spec, function, job.blocks)
    try:
        with without_output():
            metadata, built = _compile(job, function, constants)
    except Exception as error:
        raise compile_failure(spec, explain_failure(error)) from error
    return _read_compiled(job, metadata, built)


def _compile(job: Job, function: Any, constants: dict[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Returns what Triton says of a compiled kernel, and its code by kind."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    params, positions = job.spec.params, {name: position for position, name in enumerate(function.arg_names)}
    of_params = [positions[param.name] for param in params]
    signature = triton_signature(params, tuple(constants))
    source = ASTSource(
        function,
        {name: signature[name] for name in positions},
        constexprs={(positions[name],): value for name, value in constants.items()},
        attrs=triton_attributes(params, aligned=job.aligned, divisors=job.divisors, positions=of_params),
    )
    options: dict[str, Any] = {
        "num_warps": job.config.num_warps,
        "num_stages": job.config.num_stages,
        "enable_fp_fusion": True,
        "sanitize_overflow": False,
        "debug": job.spec.facts.checked,
    }
    if job.spec.facts.registers and job.target.backend == "cuda":
        options["maxnreg"] = job.spec.facts.registers
    if job.uses_pdl:
        options["launch_pdl"] = True
    target = GPUTarget(job.target.backend, job.target.arch, job.target.warp_size)
    compiled = triton.compile(source, target=target, options=options)
    built = {kind: compiled.asm[kind] for kind in ("ptx", "cubin", "hsaco") if kind in compiled.asm}
    if job.target.backend == "cuda":
        ptx = split_packed_additions(built["ptx"])
        if ptx is not built["ptx"]:
            built = {"ptx": ptx, "cubin": _assembled(ptx, target, options)}
    return compiled.metadata, built


def _assembled(ptx: str, target: Any, options: dict[str, Any]) -> bytes:
    """Returns the machine code of PTX, made as Triton makes it."""
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    code: bytes = backend.make_cubin(ptx, {}, backend.parse_options(options), target.arch)
    return code


def _read_compiled(job: Job, metadata: Any, built: Mapping[str, Any]) -> Binary:
    is_cuda = job.target.backend == "cuda"
    code = built["ptx"].encode() + b"\0" if job.wants_ptx else built["cubin" if is_cuda else "hsaco"]
    sizes = ptx_param_sizes(built["ptx"], metadata.name) if is_cuda else ()
    registers, local_bytes = read_resources(built["cubin"]) if is_cuda else (None, None)
    return Binary(
        code=code,
        entry=metadata.name,
        num_warps=metadata.num_warps,
        warp_size=job.target.warp_size,
        shared=metadata.shared,
        clusters=getattr(metadata, "num_ctas", 1) or 1,
        hidden=max(0, len(sizes) - len(job.spec.params)),
        param_sizes=sizes,
        scratch=getattr(metadata, "global_scratch_size", 0) or 0,
        registers=registers,
        local_bytes=local_bytes,
        uses_pdl=is_cuda and "griddepcontrol.wait" in built["ptx"],
    )


@functools.cache
def triton_version() -> str:
    """Returns the version of the installed Triton without importing it; ``"none"`` where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def is_triton_installed() -> bool:
    """Tells whether Triton can be imported, without importing it."""
    return importlib.util.find_spec("triton") is not None
