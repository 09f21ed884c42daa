"""Every private torch API that Ferrite uses, each with the reason; nothing else in the package imports one.

``tests/test_torch_private.py`` checks on each supported torch (2.11 – 2.13) that they exist and behave as used here.
"""

# ruff: noqa: PLC0415, SLF001 - private names are what this module is for, and late imports keep importing it cheap
from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NoReturn

import torch

# The tensors in node.meta["val"]: shapes, strides and storages of a graph without data. torch publishes no name for the
# class.
from torch._subclasses.fake_tensor import FakeTensor

from ferrite_torch.host_results import correct_devices
from ferrite_torch.pool_offsets import save_pool_offsets
from ferrite_torch.saved_extrema import save_extrema
from ferrite_torch.scan_gradients import cumprod_gradient

BoxedFunction = Callable[[list[Any]], Any]
GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], BoxedFunction]
StoredKey = Callable[[torch.fx.GraphModule, Sequence[Any], list[str]], str]

_stored_key: ContextVar[StoredKey | None] = ContextVar("ferrite_stored_key", default=None)


def register_backend(function: Callable[..., Any], name: str) -> None:
    """Enters a compiler in torch.compile's registry, unless its entry point or an earlier import did so.

    Private because the registry of names is: the public ways are entry points only, which need an installed package.
    """
    from torch._dynamo.backends import registry

    if name not in registry._BACKENDS and name not in registry._COMPILER_FNS:
        registry.register_backend(function, name=name)


def fix_module_floats(is_ours: Callable[[Any], bool]) -> None:
    """Makes dynamo take floats of modules and globals as constants until they change, where the backend is ours.

    Under ``dynamic=True`` it makes every float an input at once, and each input a tensor at each call: 3 us for every
    epsilon and dropout rate of a model. Integers of modules are constants there anyway, and without ``dynamic=True``
    floats are, until they change: this is the same. Arguments, an optimiser's learning rate too, stay inputs. Private
    because only the builder of variables sees where a float comes from before it becomes an input.

    Args:
        is_ours: whether a compiler function is this backend; others are left as they are.
    """
    from torch._dynamo import config
    from torch._dynamo.variables.builder import VariableBuilder

    theirs: Callable[[Any, float], Any] = VariableBuilder.wrap_symfloat
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def wrap_symfloat(self: Any, value: float) -> Any:
        origin = self.source.guard_source
        belongs = origin.is_unspecialized_nn_module() or not origin.is_local()
        if belongs and is_ours(_innermost(self.tx.output.compiler_fn)):
            with config.patch(assume_static_by_default=True):
                return theirs(self, value)
        return theirs(self, value)

    VariableBuilder.wrap_symfloat = wrap_symfloat  # type: ignore[method-assign]


def _innermost(compiler: Any) -> Any:
    """Returns what ``torch.compile`` was given as its backend, out of the functions that torch wraps around it."""
    while True:
        inner = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
        if inner is None:
            return compiler
        compiler = inner


def compile_with_aot(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    decompositions: dict[Any, Any],
    stored_key: StoredKey | None = None,
) -> Callable[..., Any]:
    """Returns the module split by AOTAutograd and compiled graph by graph; kept by its cache if there is a key for it.

    Private because torch offers functionalisation, joint tracing and partitioning of a dynamo graph nowhere else; this
    is the call that its own backends make. The helper class in ``torch._dynamo.backends.common`` is not used: it
    imports the default backend for its logging.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    stored = stored_key is not None
    keeping = nullcontext() if stored_key is None else _keeping_graphs(stored_key)
    with keeping, _keeping_ops_whole(), _keeping_tangents():
        compiled = aot_module_simplified(
            module,
            list(inputs),
            fw_compiler=_storable(forward) if stored else forward,  # type: ignore[arg-type]  # a protocol class
            bw_compiler=_lazily(backward),  # type: ignore[arg-type]
            inference_compiler=_storable(inference) if stored else inference,  # type: ignore[arg-type]
            partition_fn=_partition,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )
    return _undisturbed(compiled, "a compiled graph")


@contextmanager
def _keeping_tangents() -> Iterator[None]:
    """Makes AOTAutograd take gradients as they come where an output overlaps itself, as the windows of an unfold do.

    It copies them to the strides of the outputs otherwise; from torch 2.13 it leaves out strides of 0, which is all it
    knows of overlaps. A copy to places that are shared loses elements without a word.
    """
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
    from torch._prims_common import suggest_memory_format

    theirs = MemoryFormatMeta.from_tensor

    def from_tensor(tensor: torch.Tensor, *args: Any, **named: Any) -> MemoryFormatMeta | None:
        from ferrite_ir.graph import overlaps  # not needed where graphs come from the store

        if tensor.layout is torch.strided and overlaps(tensor.shape, tensor.stride()):
            return MemoryFormatMeta(memory_format=suggest_memory_format(tensor))
        return theirs(tensor, *args, **named)

    MemoryFormatMeta.from_tensor = staticmethod(from_tensor)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        MemoryFormatMeta.from_tensor = staticmethod(theirs)  # type: ignore[method-assign]


_WHOLE = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa multilabel_margin_loss_forward
"""


@contextmanager
def _keeping_ops_whole() -> Iterator[None]:
    """Makes autograd see some ops as what they are, so that their gradients are ops too.

    torch takes these apart in Python before autograd looks at them; no table of decompositions changes that, only the
    functions that it entered for these dispatch keys, which exporting a model sets aside in the same way. The gradients
    of the pieces of a resampling are scatters, and the pieces of the multilabel loss count targets that are none. The
    forms that take a size or scales for all axes (``vec``) become the others: what torch's library has in the place
    takes no symbolic size. The gradient of a cumulative product is in pieces already in torch's library, several for
    every element of a line; ours takes its place.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    packets = (getattr(torch.ops.aten, name, None) for name in _WHOLE.split())
    ops = [getattr(packet, o) for packet in packets if packet is not None for o in ("default", "vec")
           if o in packet.overloads()]  # fmt: skip
    taken = [(op, key, op.py_kernels.pop(key)) for op in ops for key in keys if key in op.py_kernels]
    meta = torch._C.DispatchKey.Meta
    fakes = {op: fake for op, fake in _gradients_of(ops) if meta not in op.py_kernels}
    pieces = {op: function for op, key, function in taken if key == torch._C.DispatchKey.Autograd}
    for op, key, _ in taken:
        if op._overloadname == "vec" and key == torch._C.DispatchKey.CompositeImplicitAutograd:
            whole = op.overloadpacket.default
            op.py_kernels[key] = _resampled_by(whole, pieces.get(whole, whole))
        op._dispatch_cache.clear()
    for op, fake in fakes.items():
        op.py_kernels[meta] = fake
        op._dispatch_cache.clear()
    scan, composite = torch.ops.aten.cumprod_backward.default, torch._C.DispatchKey.CompositeImplicitAutograd
    scan.py_kernels[composite] = cumprod_gradient
    scan._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, function in taken:
            op.py_kernels[key] = function
            op._dispatch_cache.clear()
        for op in fakes:
            del op.py_kernels[meta]
            op._dispatch_cache.clear()
        del scan.py_kernels[composite]
        scan._dispatch_cache.clear()


def _gradients_of(ops: Iterable[Overload]) -> Iterator[tuple[Overload, Callable[..., torch.Tensor]]]:
    """Yields the ops that compute the gradients of others, each with a function of what its result looks like."""
    for op in ops:
        name = op._schema.name.removeprefix("aten::").removesuffix("_forward")
        packet = getattr(torch.ops.aten, f"{name}_backward", None)
        if packet is not None and op._overloadname == "default":
            yield packet.default, _resampling_gradient if "upsample" in name else _gradient_of_loss


def _resampling_gradient(grad: torch.Tensor, output_size: Any, input_size: Any, *options: Any) -> torch.Tensor:
    """Returns what the gradient of a resampling looks like: the library's own such function takes no symbolic size."""
    format_ = torch.channels_last if grad.dim() == 4 and _lies_by_channels(grad) else torch.contiguous_format
    return grad.new_empty(input_size).to(memory_format=format_)


def _gradient_of_loss(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Returns what the gradient of a loss looks like, for one that the library runs on zeros to see it."""
    return x.new_empty(x.shape)


def _lies_by_channels(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _resampled_by(op: Overload, pieces: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a resampling to a size, or by scales, for all axes; ``op`` takes the size, and a scale for each axis.

    Of a batch without images the ``pieces`` of the op do it: its own check of an empty image asks a symbolic number for
    its truth.
    """

    def resampled(x: torch.Tensor, size: Any, *options: Any) -> Any:
        *corners, scales = options
        rank = x.dim() - 2
        if size is None:
            size = [
                torch.sym_int(extent * scale)  # type: ignore[no-untyped-call]
                for extent, scale in zip(x.shape[2:], scales, strict=True)
            ]
        resample = pieces if type(x.shape[0]) is int and x.shape[0] == 0 else op
        return resample(x, size, *corners, *(scales or [None] * rank))

    return resampled


# What AOTAutograd's cache needs: compiled functions inside its entries, and backwards compiled ahead, because an entry
# is complete only with its backward, and these settings end with the call that compiles.
_STORED = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}


def stores_graphs() -> bool:
    """Returns whether AOTAutograd can keep graphs of other compilers than torch's own, and the user lets it.

    The parts are looked for one by one, as none is published. Compiled autograd traces each backward as a graph, which
    a stored one no longer is; precompilation stores entries elsewhere.
    """
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config
    from torch._functorch._aot_autograd import autograd_cache, schemas

    needed = (
        "OutputCode",
        "BypassAOTAutogradCache",
        "autograd_cache_key",
        "check_cacheable",
        "should_use_local_autograd_cache",
    )
    if not hasattr(schemas, "SerializableAOTDispatchCompiler") or not all(hasattr(autograd_cache, n) for n in needed):
        return False
    if not all(hasattr(config, name) for name in _STORED):
        return False
    if getattr(dynamo_config, "compiled_autograd", False) or getattr(dynamo_config, "caching_precompile", False):
        return False
    return bool(autograd_cache.should_use_local_autograd_cache())


def output_code() -> type:
    """Returns the class that AOTAutograd's cache wants compiled graphs to be of; it is looked up where that does."""
    from torch._functorch._aot_autograd import autograd_cache

    found: type = getattr(autograd_cache, "OutputCode")  # noqa: B009  # not among the names that it exports to checkers
    return found


def refuse_to_store(reason: str) -> NoReturn:
    """Raises what AOTAutograd's cache takes for a graph that is not to be stored; other exceptions it warns about."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    raise BypassAOTAutogradCache(reason)


@contextmanager
def _keeping_graphs(stored_key: StoredKey) -> Iterator[None]:
    from torch._functorch import config

    _install_key()
    token = _stored_key.set(stored_key)
    try:
        with config.patch(_STORED):
            yield
    finally:
        _stored_key.reset(token)


def _install_key() -> None:
    """Makes AOTAutograd's cache use our keys for our graphs; all others keep theirs.

    Its own key hashes all of torch's and Triton's files and the settings of the default backend, whose code generators
    it imports: about a second in a fresh process, as much as tracing a model takes, and nothing that we depend on.
    There is no hook for it.
    """
    from torch._functorch._aot_autograd import autograd_cache

    theirs: Callable[..., tuple[str, list[str]]] = autograd_cache.autograd_cache_key
    if getattr(theirs, "knows_stored_keys", False):
        return

    @functools.wraps(theirs)
    def autograd_cache_key(module: Any, inputs: Any, config: Any, *rest: Any, **named: Any) -> tuple[str, list[str]]:
        stored_key = _stored_key.get()
        if stored_key is None:
            return theirs(module, inputs, config, *rest, **named)
        autograd_cache.check_cacheable(module)
        return f"aferrite-{stored_key(module, inputs, _described(config))}", []

    autograd_cache_key.knows_stored_keys = True  # type: ignore[attr-defined]
    autograd_cache.autograd_cache_key = autograd_cache_key  # type: ignore[assignment]  # takes any arguments


def _described(config: Any) -> list[str]:
    """Returns what AOTAutograd is asked for, and every setting that it reads, as texts."""
    from torch._functorch import config as settings

    names = (
        "num_params_buffers",
        "keep_inference_input_mutations",
        "is_export",
        "no_tangents",
        "dynamic_shapes",
        "aot_autograd_arg_pos_to_source",
        "static_input_indices",
        "enable_log",
        "pre_dispatch",
    )
    autocast = [
        (device, str(torch.get_autocast_dtype(device)))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    asked = [f"{name}={getattr(config, name, None)!r}" for name in names]
    saved = settings.save_config()
    return [*asked, repr(autocast), repr(torch.is_grad_enabled()), hashlib.sha256(saved).hexdigest()]


def _storable(compiler: GraphCompiler) -> Any:
    """Returns a compiler whose results AOTAutograd may keep: it asks for a class of its own."""
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    wanted: Any = SerializableAOTDispatchCompiler  # typed for functions that return the class, not functions around it
    return wanted(output_code(), compiler)


def _lazily(backward: GraphCompiler) -> GraphCompiler:
    """Returns the backward compiler kept from dynamo, which may be active when a backward is compiled lazily."""
    undisturbed = _undisturbed(backward, "the backward compiler")

    def compile_backward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> BoxedFunction:
        return _undisturbed(undisturbed(module, inputs), "a compiled backward graph")

    return compile_backward


def _undisturbed(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    disabled: Callable[..., Any] = torch.compiler.disable(function, reason=reason)  # type: ignore[no-untyped-call]
    return disabled


def _partition(joint: torch.fx.GraphModule, inputs: Any, **rest: Any) -> Any:
    """Splits a joint graph where the fewest bytes cross.

    The min-cut partitioner is published only in functorch's private modules.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    correct_devices(joint.graph)
    with _fakes_of(joint):
        save_pool_offsets(joint.graph)
    save_extrema(joint.graph)
    return min_cut_rematerialization_partition(joint, inputs, **rest)


def _fakes_of(module: torch.fx.GraphModule) -> AbstractContextManager[Any]:
    """Returns the mode in which ops make fake tensors that belong with those of a graph."""
    fakes = (node.meta.get("val") for node in module.graph.nodes)
    return next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), contextlib.nullcontext())


def flatten_inputs(
    module: torch.fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a module with nested inputs (as compiled autograd passes them) compiled over its flat ones.

    Dynamo's own helper knows the nesting.
    """
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(module, inputs, compiler)


def core_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Returns torch's table of decompositions to core aten.

    The private form leaves out the hundreds of composite ops that the dispatcher takes apart anyway: 2 ms instead of
    75.
    """
    from torch import _decomp

    table = getattr(_decomp, "_core_aten_decompositions_post_autograd", _decomp.core_aten_decompositions)()
    return dict(table.items())


def decompositions_of(ops: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions of these ops (packets or overloads); ops without one are left out.

    ``torch._decomp`` is where they live; ``torch.export`` republishes only the core ones.
    """
    from torch._decomp import get_decompositions

    return dict(get_decompositions(list(ops)))


def without_modes() -> AbstractContextManager[Any]:
    """Returns a context in which tensors are real again.

    Compilers are called under AOTAutograd's fake-tensor mode, which has no public way out.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


Overload = torch._ops.OpOverload
"""An aten op in the form that graphs hold; torch gives the class no public name."""

Packet = torch._ops.OpOverloadPacket
"""All overloads of an op under one name; no public name either."""

HigherOrderOp = torch._ops.HigherOrderOperator
"""An op that takes functions, such as ``cond``; no public name either."""


def schema_of(op: Overload) -> Any:
    """Returns an op's schema: which arguments it writes, which results alias them; only a private attribute has it."""
    return op._schema


def storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that two fake tensors share exactly if they share storage.

    Fake tensors have no data pointer; the storage's C++ address is the one thing that tells them apart.
    """
    return int(tensor.untyped_storage()._cdata)


def _forward_metadata() -> Any:
    """Returns what AOTAutograd knows of the forward graph of what is being compiled, None outside of that."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _frame_environment() -> Any:
    """Returns the environment that knows the symbols of the frame being compiled, None if there is none."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context.fake_mode.shape_env


def regenerated_outputs() -> frozenset[int]:
    """Returns the positions of results of the graph being compiled that AOTAutograd replaces by views of the inputs.

    Only their shape and strides are read, so they need no storage of their own. Only AOTAutograd's metadata says which.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    metadata = _forward_metadata()
    if metadata is None or not all(isinstance(meta, PlainTensorMeta) for meta in metadata.subclass_fw_graph_out_meta):
        return frozenset()  # the results of tensor subclasses are several: positions would not match
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    from_inputs = (OutputType.alias_of_input, OutputType.is_input)
    return frozenset(
        first + place for place, info in enumerate(metadata.output_info) if info.output_type in from_inputs
    )


def saved_outputs(count: int) -> frozenset[int]:
    """Returns the positions, among ``count`` results of the forward graph being compiled, that only its backward sees.

    They may lie as the compiler likes if it says so with `report_strides`. Only AOTAutograd's metadata tells them from
    the user's. None are where their new strides would be lost: compiled autograd runs the backward as it was traced,
    and effect tokens shift the positions that are reported.
    """
    from torch._dynamo import config
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or getattr(context, "output_strides", None) != [] or metadata.tokens:
        return frozenset()
    return frozenset() if getattr(config, "compiled_autograd", False) else frozenset(range(metadata.num_forward, count))


def drop_dynamic_marks() -> None:
    """Has AOTAutograd save tensors for the backward as they are, without writing on each which of its sizes may change.

    It does so in every call (0.2 us a tensor), for dynamo to read where compiled autograd traces the backward anew.
    Where that is on, the marks stay.
    """
    from torch._dynamo import config

    marks = getattr(_forward_metadata(), "dynamic_saved_tensors_idxs", None)
    if marks and not getattr(config, "compiled_autograd", False):
        marks.clear()


def donated_inputs() -> tuple[int, ...]:
    """Returns the positions of arguments of the backward graph being compiled that nobody else reads, then or later.

    They may share storage with each other. Only AOTAutograd's metadata says which. It is told that there are none: it
    would refuse to run such a backward under ``retain_graph``, where ours copies what it overwrites (`keeps_graph`).
    """
    metadata = _forward_metadata()
    positions = getattr(metadata, "bw_donated_idxs", None) or []
    found = tuple(positions)
    positions.clear()
    return found


def held_inputs(module: torch.fx.GraphModule) -> list[int]:
    """Returns the positions of arguments of the backward graph being compiled that are parameters or buffers.

    Only AOTAutograd's metadata tells them from other inputs of the forward, by their numbers there.
    """
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta

    metadata = _forward_metadata()
    if (
        metadata is None
        or metadata.tokens
        or not all(isinstance(m, PlainTensorMeta) for m in metadata.subclass_inp_meta)
    ):
        return []  # the parts of tensor subclasses are several: numbers would not match
    names = {f"primals_{number + 1}" for number in metadata.static_input_indices or ()}
    placeholders = module.graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(placeholders) if node.target in names]


def keeps_graph() -> bool:
    """Returns whether the backward that is running may run again (``retain_graph``); True where none is running.

    Private because autograd tells it nowhere else; AOTAutograd asks the same.
    """
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def report_strides(strides: Iterable[tuple[int, ...] | None]) -> None:
    """Tells AOTAutograd how the results of the graph being compiled lie, None for those that are no tensors.

    The backward is then compiled for tensors saved in that layout. The list on the tracing context is the way in which
    AOTAutograd asks for it; it is absent where nobody asks.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    wanted = getattr(context, "output_strides", None)
    if wanted == [] and context is not None and context.fw_metadata is not None and not context.fw_metadata.tokens:
        wanted.extend(strides)


def has_guarded_floats() -> bool:
    """Returns whether the value of a float has decided anything, so far, about the frame being compiled.

    Neither the key of a graph in AOTAutograd's cache nor what is evaluated where one is found there knows of it: the
    graph that dynamo captured names the float, and only those made of it have its value.
    """
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    environment = _frame_environment()
    guards = () if environment is None else environment.guards
    return any(symbol_is_type(symbol, SymT.FLOAT) for guard in guards for symbol in guard.expr.free_symbols)


def is_data_dependent(error: BaseException) -> bool:
    """Returns whether an error says that a size or number is known only at run time: the classes are private."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
    return isinstance(error, kinds)


def is_restart(error: BaseException) -> bool:
    """Returns whether an exception is dynamo's way of starting over: backends must let it pass."""
    from torch._dynamo import exc

    kinds = tuple(
        getattr(exc, name)
        for name in ("RestartAnalysis", "TensorifyScalarRestartAnalysis", "SkipFrame")
        if hasattr(exc, name)
    )
    return isinstance(error, kinds)


def keep_writes_through_restarts() -> None:
    """Makes dynamo keep writes to numbers (tensors of no dims on the CPU, in float64) when it starts over.

    On its second way it drops the inputs whose numbers became constants: nodes that hold such a number and that nobody
    uses. The result of a write in place is one as well, and torch (2.11 – 2.13) drops the write, whatever the backend.
    """
    from torch._dynamo.output_graph import OutputGraph

    theirs: Callable[[Any], None] = OutputGraph.remove_tensorify_specialized_graphargs
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def remove_tensorify_specialized_graphargs(self: Any) -> None:
        hidden = {
            node: node.meta.pop("example_value")
            for node in self.graph.nodes
            if node.op != "placeholder" and "example_value" in node.meta
        }
        try:
            theirs(self)
        finally:
            for node, value in hidden.items():
                node.meta["example_value"] = value

    OutputGraph.remove_tensorify_specialized_graphargs = (  # type: ignore[method-assign]
        remove_tensorify_specialized_graphargs
    )


def unwrapped_function(node: torch.fx.Node) -> Callable[..., Any] | None:
    """Returns what a call of ``auto_functionalized`` means, on the same arguments; None for any other node.

    The functions that take the wrapper apart live beside it, in a private module.
    """
    if not isinstance(node.target, HigherOrderOp) or not str(node.target).startswith("auto_functionalized"):
        return None
    from torch._higher_order_ops import auto_functionalize

    function: Callable[..., Any] = getattr(auto_functionalize, f"{node.target}_dense")
    return function


def trace_on_fakes(function: Callable[..., Any], fakes: Sequence[Any]) -> torch.fx.GraphModule:
    """Returns the ops that a function calls on fake tensors, in a graph; ``make_fx`` is experimental."""
    from torch.fx.experimental.proxy_tensor import make_fx

    modes = [fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)]
    with without_modes(), modes[0] if modes else contextlib.nullcontext():
        return make_fx(function)(*fakes)


def relax_dynamic_marks() -> None:
    """Allows the sizes that ``mark_dynamic`` marked, in the frame being compiled, to be specialised.

    A marked size that is specialised is an error to dynamo. The constraint lies with the fake inputs it traced with;
    one that only warns takes its place.
    """
    from torch.fx.experimental.symbolic_shapes import RelaxedUnspecConstraint

    shapes = _frame_environment()
    for tracked in () if shapes is None else shapes.tracked_fakes or ():
        sizes: Any = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for axis, constraint in enumerate(sizes):
            if constraint is not None:
                sizes[axis] = RelaxedUnspecConstraint(warn_only=True)


def example_of(placeholder: torch.fx.Node) -> Any:
    """Returns the fake input that dynamo traced with: only there are sizes symbolic, the inputs it passes are real."""
    return placeholder.meta.get("example_value", placeholder.meta.get("val"))


def is_fake(value: Any) -> bool:
    """Returns whether a value is a tensor without data."""
    return isinstance(value, FakeTensor)


def explain_graph_breaks(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns dynamo's report on graph breaks; its entry point is documented, but lives under a private name."""
    import torch._dynamo as dynamo

    return dynamo.explain(function)(*args, **kwargs)


def symbolic_value(value: torch.SymInt | torch.SymFloat) -> tuple[Any, Any]:
    """Returns the SymPy expression of a symbolic number, and the environment that knows its symbols."""
    return value.node.expr, value.node.shape_env


def unsimplified_value(value: torch.SymBool) -> tuple[Any, Any]:
    """Returns the SymPy expression of a condition as it was asked, and the environment that knows its symbols.

    The public expression is what is left of it when all that was asked before is taken for granted, itself included.
    """
    return value.node._expr, value.node.shape_env


def environment_of(node: torch.fx.Node) -> Any:
    """Returns the environment that knows the symbols in the results of a node, None if there are none."""
    stack = [node.meta.get("val")]
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack.extend(value)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value.node.shape_env
        elif isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def unbacked_bindings(node: torch.fx.Node) -> list[tuple[Any, tuple[tuple[str, Any], ...]]]:
    """Returns the symbols whose values a run of a node tells, each with the way to it from the node's result.

    The way is a tuple of steps: ``("item", position)`` of a tuple, ``("size", axis)`` and ``("stride", axis)`` of a
    tensor, ``("storage_offset", None)``, ``("bool", None)``, and other names for what is not known here. Tracing
    anew gives new symbols, which are then the old ones under other names.
    """
    found = node.meta.get("unbacked_bindings")
    if not found:
        return []
    environment = environment_of(node)
    return [(current_symbol(symbol, environment), tuple(_path_steps(path))) for symbol, path in found.items()]


def _path_steps(path: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    steps = list(path)
    while steps:
        step = steps.pop(0)
        match type(step).__name__:
            case "CallMethodKey":
                yield step.name, steps.pop(0).idx if steps and hasattr(steps[0], "idx") else None
            case "SequenceKey":
                yield "item", step.idx
            case "ConvertIntKey":
                yield "bool", None
            case other:
                yield other, None


def current_symbol(symbol: Any, environment: Any) -> Any:
    """Returns a symbol that only a run tells under the name that it has now."""
    return (getattr(environment, "unbacked_renamings", None) or {}).get(symbol, symbol)


def replaced_symbol(symbol: Any, environment: Any) -> Any:
    """Returns the expression that torch knows a symbol to be equal to, None for a symbol that stands for itself."""
    expression = environment.replace(symbol)
    return None if expression == symbol else expression


def without_least_extents(expression: Any, environment: Any) -> Any:
    """Returns a stride with ``Max(1, u0)`` as ``u0``, for extents that only a run tells."""

    def is_least(part: Any) -> bool:
        if type(part).__name__ != "Max" or 1 not in part.args:
            return False
        return all(is_unbacked(symbol, environment) for symbol in part.free_symbols)

    return expression.replace(is_least, lambda part: part.func(*(arg for arg in part.args if arg != 1)))


def source_text(node: torch.fx.Node) -> str:
    """Returns the line of the user's program that a node comes from, "" where it is not known.

    Only the text of a stack trace has it.
    """
    lines = str(node.meta.get("stack_trace") or "").splitlines()
    places = [place for place, line in enumerate(lines) if line.lstrip().startswith("File ")]
    return lines[places[-1] + 1].strip() if places and places[-1] + 1 < len(lines) else ""


def environments(values: Iterable[Any]) -> Iterator[Any]:
    """Yields the environments of the symbolic integers in some values, which may be fake tensors."""
    for value in values:
        for number in (*value.shape, *value.stride()) if is_fake(value) else (value,):
            if isinstance(number, torch.SymInt):
                yield number.node.shape_env


def is_symbolic(values: Iterable[Any]) -> bool:
    """Returns whether symbolic integers, or tensors with symbolic sizes or strides, are among some values."""
    return any(True for _ in environments(values))


def symbol_facts(symbol: Any, environment: Any) -> tuple[int | None, int | None, int | None]:
    """Returns the least and greatest value of a symbol, and its present one; None for what is not known."""
    span = environment.var_to_range.get(symbol)
    low, high = (None, None) if span is None else (_finite(span.lower), _finite(span.upper))
    known = getattr(environment, "backed_var_to_val", None)
    hint = (environment.var_to_val if known is None else known).get(symbol)
    return low, high, None if hint is None or is_unbacked(symbol, environment) else _finite(hint)


def _finite(bound: Any) -> int | None:
    """Returns a bound as an integer; None for infinity, and for what is as good as that."""
    return int(bound) if getattr(bound, "is_Integer", isinstance(bound, int)) and abs(int(bound)) < 1 << 48 else None


def symbol_source(symbol: Any, environment: Any) -> str:
    """Returns where dynamo reads a symbol, as ``L['x'].size()[0]``; "" for one that is no number of an input.

    Only the texts of guards say it publicly, and those come after everything is compiled.
    """
    sources = environment.var_to_sources.get(symbol)
    return str(sources[0].name) if sources else ""


def is_unbacked(symbol: Any, environment: Any) -> bool:
    """Returns whether only a run tells the value of a symbol."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return bool(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)))


def is_unbacked_number(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> bool:
    """Returns whether a symbolic number depends on data."""
    expression, environment = value.node.expr, value.node.shape_env
    return any(is_unbacked(symbol, environment) for symbol in getattr(expression, "free_symbols", ()))


def specialise_symbol(symbol: Any, environment: Any) -> int:
    """Returns the present value of a symbol, and has it guarded."""
    return int(environment.evaluate_expr(symbol))


# --- ahead of time --------------------------------------------------------------------------------------------------


def fake_mode() -> Any:
    """Returns a mode in which tensors have no data; real ones that a model holds besides its state may meet them.

    The class lives in a private module.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def exporting() -> Iterator[None]:
    """Makes ``torch.compiler.is_compiling()`` and ``is_exporting()`` true: models then leave checks of values out.

    ``torch.export`` sets the same two flags, and nothing public does.
    """
    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    before = {name: getattr(torch.compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)


def trace_functional(
    function: Callable[..., Any], fakes: Sequence[Any], *, joint: bool, decompositions: dict[Any, Any]
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """Returns a function of flat tensors as a functional graph; ``joint`` with its derivative, to be partitioned.

    The function writes to nothing, and its results share storage with nothing that outlives them. The second value has
    the positions of the results whose gradients the derivative takes. ``torch.export`` offers the graph without its
    derivative only, and with another calling convention.
    """
    from torch._functorch.aot_autograd import _aot_export_function

    with nullcontext() if joint else torch.no_grad():
        found: Any = _aot_export_function(function, tuple(fakes), decompositions=decompositions, trace_joint=joint)
    traced, metadata = found[0], found[1]
    kinds = sorted({info.output_type.name for info in metadata.output_info} - {"non_alias", "unsafe_view_alias"})
    if kinds or any(info.mutates_data for info in metadata.input_info):
        raise TypeError(f"the captured function still has side effects: {', '.join(kinds) or 'it writes to an input'}")
    _name_attention(traced)
    derived = (place for place, info in enumerate(metadata.output_info) if info.requires_grad)
    return traced, tuple(derived)


def written_arguments(function: Callable[..., Any], fakes: Sequence[Any]) -> list[int]:
    """Returns the positions of the tensors that a function of flat tensors writes to.

    Only functionalisation sees all of it: norms write their running statistics without a trace in the tensors.
    """
    from torch._functorch.aot_autograd import _aot_export_function

    with torch.no_grad():
        metadata = _aot_export_function(function, tuple(fakes), decompositions={}, trace_joint=False)[1]
    return [place for place, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata]


def partition(
    joint: torch.fx.GraphModule, results: int, held: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Returns the forward and the backward of a joint graph with so many results, the first arguments being weights."""
    forward, backward = _partition(
        joint, None, num_fwd_outputs=results, static_lifetime_input_indices=list(range(held))
    )
    return forward, backward


def move_fake(fake: Any, device: torch.device) -> None:
    """Moves a tensor without data to another device, in place, so that what shares its storage still does.

    A fake is on the device that this attribute says; nothing public changes it.
    """
    fake.fake_device = device


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns the arguments of a node with each leaf mapped; torch.fx exports the walk under a private name only."""
    from torch.fx.node import map_aggregate

    return map_aggregate(value, function)


@functools.cache
def _attention_op() -> Any:
    """Returns an op that stands for attention while a model is traced: the real one is taken apart by the dispatcher.

    Its result lies as those of the fused kernels do: heads innermost but one. ``torch.library`` is public; that the
    name is registered once per process is why this is cached here.
    """

    @torch.library.custom_op("ferrite_capture::attention", mutates_args=())
    def attention(  # the real op's
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002
    ) -> torch.Tensor:
        raise NotImplementedError

    @attention.register_fake
    def _(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        shape = [*query.shape[:-1], value.shape[-1]]
        if query.dim() != 4:
            return query.new_empty(shape)
        batch, heads, length, width = shape
        return query.new_empty([batch, length, heads, width]).transpose(1, 2)

    return torch.ops.ferrite_capture.attention.default


def attention_in_graph(  # the real function's
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Returns the result of the op that stands for attention, called as torch's function is."""
    return _attention_op()(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _name_attention(module: torch.fx.GraphModule) -> None:
    """Puts torch's attention where the op stands that stood for it."""
    for node in module.graph.find_nodes(op="call_function", target=_attention_op()):
        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        # The dispatcher leaves trailing arguments out that have their default values.
        given = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
        given |= dict(zip(names, node.args[3:], strict=False))
        node.target = torch.ops.aten.scaled_dot_product_attention.default
        node.args = (*node.args[:3], given.pop("attn_mask"), given.pop("dropout_p"), given.pop("is_causal"))
        node.kwargs = given
