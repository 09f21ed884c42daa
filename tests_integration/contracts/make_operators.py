"""Writes the list of operators that bundles may call: ``python tests_integration/contracts/make_operators.py``.

An operator of torch's own namespaces is on the list if it computes on tensors and does nothing else: it takes and
returns tensors and plain values, reads and writes no file, never gives a tensor another storage, size or strides, and
has no form that leaves out the checks on which other operators rely. What the list has already stays on it unless a
rule leaves it out: run this with every supported torch, one after the other, and review what is new. The list says
which versions it is of. With ``--check`` nothing is written. Operators are those that ``import torch`` makes: what
other modules add is not there where a bundle is run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]

import torch

from ferrite_runtime.host.operators import LIST, torch_operators, torch_versions, write_operators

NAMESPACES = ("aten", "prims")
PLAIN = frozenset(
    (
        *("Tensor", "number", "int", "SymInt", "SymFloat", "SymBool", "float", "bool", "str", "complex"),
        *("ScalarType", "Layout", "Device", "MemoryFormat", "Generator"),
    )
)
"""Types of arguments and results, without what makes them lists or optional."""
LEFT_OUT = {
    r"from_file|save|load": "touches files",
    r".*resize.*|set_?|set_data|.*_copy_from.*": "gives a tensor another storage, which addresses do not follow",
    r"shallow_copy_data_": "gives a tensor another storage, too",
    r".*(view_from|from_buffer|_from_offsets).*": "makes views that it does not check",
    r"(?!_?unsafe_(view|index|masked|chunk|split)).*unsafe.*": "leaves checks out",
    r"_?segment_reduce.*|_sparse_.*_tensor_unsafe.*": "can be told to leave checks out",
    r"fbgemm.*|.*prepacked.*|quantized_(gru|lstm|rnn).*": "take weights that are packed as addresses",
    r"mkldnn_rnn.*": "reads weights by the sizes that it is told, whatever sizes they have",
    r"_test.*|_print|record_stream|_?backward|_fw_primal.*|_make_.*token.*|_version": "does no work on elements",
    r"retain_grad|requires_grad_": "is about differentiation, of which a program's steps know nothing",
    r"align_.*|refine_names|rename": "names dims, which tensors of a program do not have",
    r"_cudnn_attention_forward_no_dropout_inplace": "reads where other tensors say, which it does not check",
    r"_local_scalar_dense|item|is_nonzero|equal": "tells the host a number: the step `item` does",
    r".*(sparse|nested|mkldnn|quantized|_cslt).*|_?(crow_|ccol_|row_|col_)?indices(_copy)?|_?values(_copy)?|"
    r"_?(is_)?coalesced?_?|quantize_per.*|q_.*|int_repr|_make_per.*|_empty_(affine|per_channel).*": (
        "makes or takes apart tensors that are made of others, whose parts a program could change afterwards"
    ),
    r"_(convert_indices|sobol|cudnn_rnn_flatten|slow_conv2d|thnn_diff|dyn_quant|remove_batch_dim|add_batch_dim).*|"
    r"_(cummax|cummin|cholesky_solve)_helper|_(stack|transform_bias_rescale_qkv|nnpack_spatial_convolution)|"
    r"_batch_norm_impl_index.*|batch_norm_update_stats|_foreach_copy|__upsample.*|"
    r"_debug.*|.*_reshape_alias.*|_weight_norm|_propagate_xla_data": (
        "is an inner part of an operator that checks its arguments, and does not check them itself"
    ),
    r"(_?adaptive_|fractional_)?(max|avg)_pool[123]d(_with_indices)?_backward|"
    r"_?(native_|cudnn_|miopen_)?batch_norm_(backward.*|with_update|no_update)|_?native_batch_norm(_legit.*)?|"
    r"native_layer_norm_backward|_log_softmax_backward_data|_weight_norm_interface.*|_pdist_backward|"
    r"_?ctc_loss.*|_embedding_bag_.*backward|grid_sampler_[23]d_backward|multilabel_margin_loss_backward|"
    r"(replication_pad[123]d|unfold)_backward": (
        "takes positions, sizes or sums of an operator before it for what that one returned, and reads or writes "
        "outside of its tensors where they are others; programs of the compiler have kernels for these"
    ),
}
"""Names, as whole regular expressions, of operators that are not on the list, and why."""
NAMED_DIMS = r"(?i)dimname|(^|_)names(_|$)|^named_|ellipsis_idx"
"""Overloads that take names of dims, which tensors of a program do not have; torch has them up to 2.12."""


def own_version() -> str:
    """Returns the version of this torch without what changes with a repair: ``2.13``."""
    return ".".join(torch.__version__.split(".")[:2])


def listed_operators() -> set[str]:
    """Returns the operators of this torch that are on the list: ``aten.add.Tensor``."""
    return {
        f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        for schema in torch._C._jit_get_all_schemas()
        if _is_listed(schema)
    }


def _is_listed(schema: torch.FunctionSchema) -> bool:
    namespace, _, name = schema.name.partition("::")
    if namespace not in NAMESPACES or "..." in str(schema):
        return False
    if _is_left_out(name):
        return False
    if re.search(NAMED_DIMS, schema.overload_name):
        return False
    values = [*schema.arguments, *schema.returns]
    kinds = {kind for value in values for kind in _plain_kinds(str(value.type))}
    writes_result = any(value.kwarg_only and value.is_out for value in schema.arguments)
    return kinds <= PLAIN and "Tensor" in kinds and not writes_result and not _changes_layout(schema)


def _is_left_out(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in LEFT_OUT)


def _plain_kinds(text: str) -> Iterator[str]:
    """Yields the names in the text of a type, without lists and optionals."""
    yield from (word for word in re.findall(r"[A-Za-z_]+", text) if word not in ("List", "Optional"))


def _changes_layout(schema: torch.FunctionSchema) -> bool:
    """Tells whether an operator changes the sizes of a tensor in place."""
    namespace, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, schema.overload_name or "default", None)
    return overload is None or torch.Tag.inplace_view in overload.tags


def main(*, writes: bool) -> int:
    """Writes the list, or only says what of this torch it lacks; returns 1 if it lacks what is not written."""
    new = sorted(listed_operators() - torch_operators())
    for name in new:
        print(f"new: {name}")
    if not writes:
        return int(bool(new) or own_version() not in torch_versions())
    kept = {name for name in torch_operators() if not _is_left_out(name.split(".")[1])}
    names, versions = listed_operators() | kept, torch_versions() | {own_version()}
    LIST.write_text(write_operators(names, versions))
    print(f"{LIST}: {len(names)} operators, of torch {' '.join(sorted(versions))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(writes="--check" not in sys.argv[1:]))
