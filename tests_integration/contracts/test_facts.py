"""Facts that the writer of specs states are those that their reader knows, of the same type, form by form."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ferrite_runtime.formats.facts import spec_forms
from ferrite_triton.facts import records

COMMON = records.CommonFacts(
    loads=2,
    stores=1,
    reductions=1,
    ops=3,
    flops=300,
    bytes=1200,
    element_bytes=4,
    contiguous_axis=None,
    transposed=False,
    numel=100,
    atomics=False,
    random=True,
    neighbours=0,
    noncoalesced=True,
    vectors=2,
    registers=64,
)
POINTWISE = records.PointwiseFacts(percent_apart=7, sorted=True)
REDUCTION = records.ReductionFacts(reduction_size=64, live_values=2, passes=2, rows_together=4, row_per_thread=True)
SPLIT = records.SplitFacts(splits=3, register_tiles=2)
WRITTEN: dict[str, records.Facts] = {
    "pointwise": records.KernelFacts(COMMON, POINTWISE),
    "combo": records.KernelFacts(COMMON, records.PointwiseFacts(parts=3)),
    "mixed_combo": records.MixedComboFacts(
        loads=2,
        stores=1,
        reductions=1,
        ops=3,
        flops=300,
        bytes=1200,
        numel=100,
        element_bytes=4,
        atomics=False,
        random=True,
    ),
    **{form: records.KernelFacts(COMMON, REDUCTION) for form in ("persistent", "looped", "scan", "sort")},
    "row_column": records.KernelFacts(COMMON, REDUCTION, records.RowColumnFacts(chunk=8)),
    "contraction": records.KernelFacts(COMMON, REDUCTION, records.ContractionFacts(product=1, multiplied_rows=2)),
    "tiled_contraction": records.KernelFacts(
        COMMON,
        REDUCTION,
        records.TiledContractionFacts(
            product=2, left_bytes=2, right_bytes=4, factor_bytes=1, partial_sums=True, row_groups=8, sum_groups=4
        ),
    ),
    "attention": records.KernelFacts(
        COMMON, REDUCTION, records.AttentionFacts(sums=2, products=1, depth=64, factors=2, factor_bytes=2, softmax=True)
    ),
    "grid_reduction": records.KernelFacts(COMMON, REDUCTION, SPLIT),
    "look_back": records.KernelFacts(COMMON, REDUCTION, SPLIT),
    "register_norm": records.KernelFacts(COMMON, REDUCTION, records.RegisterNormFacts(splits=3, threads=128)),
    "template": records.TemplateFacts(num_warps=4, num_stages=2, bytes=64, registers=80),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_what_is_written_is_read(form: str) -> None:
    written = WRITTEN[form].to_mapping()
    read = spec_forms()[form].read_facts(dict(written), "facts")
    assert {name: getattr(read, name) for name in written} == written
    assert read.to_mapping() == written
    assert read.has_no_contiguous_axis == (form not in ("mixed_combo", "template"))


@pytest.mark.parametrize("form", WRITTEN)
def test_what_is_not_stated_is_left_to_the_reader(form: str) -> None:
    named = {each.name for each in fields(spec_forms()[form].facts)}
    written = WRITTEN[form]
    assert set(written.to_mapping()) <= named
    assert None not in [value for name, value in written.to_mapping().items() if name != "contiguous_axis"]


def test_every_form_that_is_written_has_its_record() -> None:
    assert set(WRITTEN) == set(spec_forms()) - {"user"}
