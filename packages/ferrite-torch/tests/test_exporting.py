"""Export: models become bundles on a machine without a GPU, and compute what they did."""

from __future__ import annotations

import json
import os
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import strict_mode

import ferrite_torch
from ferrite_runtime import Bundle, GuardFailed, IndexOutOfBounds, Options, PackageInvalid, load
from ferrite_runtime.errors import FileUnwritable
from ferrite_runtime.kernel_source.allowed_text import find_liberty
from ferrite_torch.__main__ import main
from ferrite_torch.demo.models import GPT, TextSizes
from ferrite_torch.errors import OptionError, Unsupported
from ferrite_torch.rewrites import wrapped_calls

INTERPRET = Options(interpret=True)


def reloaded(bundle: Bundle, model: nn.Module | None = None):
    weights = None if model is None else {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return load(Bundle.from_bytes(bundle.to_bytes()), weights=weights, options=INTERPRET)


def exported(model, inputs, **rest) -> Bundle:
    return ferrite_torch.export(model, inputs, **{"targets": ["sm_90"], "prebuilt": False, **rest})


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-5)


SIZES = TextSizes(vocabulary=64, hidden=32, heads=2, layers=2, length=16, batch=2)


def test_small_gpt_for_inference() -> None:
    model = GPT(SIZES).eval()
    tokens = torch.randint(0, 64, (2, 16))
    loaded = reloaded(exported(model, (tokens,)), model)
    with torch.no_grad():
        close(loaded(tokens), model(tokens))


def test_small_gpt_for_training() -> None:
    model = GPT(SIZES).train()
    tokens = torch.randint(0, 64, (2, 16))
    loaded = reloaded(exported(model, (tokens,), training=True), model)
    found = torch.autograd.grad(loaded(tokens).square().mean(), list(model.parameters()))
    expected = torch.autograd.grad(model(tokens).square().mean(), list(model.parameters()))
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs)


def test_results_that_eager_detaches_need_no_gradient() -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = super().forward(x)
            return y.detach() * 2, y.relu().sum(), y > 0, y.detach(), y

    model, x = Model(4, 4), torch.randn(3, 4)
    found, expected = reloaded(exported(model, (x,), training=True), model)(x), model(x)
    close(found, expected)
    assert [result.requires_grad for result in found] == [result.requires_grad for result in expected]
    close(*(torch.autograd.grad(loss + y.sum(), [*model.parameters()]) for _, loss, _, _, y in (found, expected)))


@pytest.mark.parametrize("training", [False, True])
def test_kernels_say_which_lines_they_come_from(*, training: bool) -> None:
    """The lines of the model, not those of torch's modules; of a derivative the lines of what it derives."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            scaled = self.norm(x) * 2
            return F.gelu(scaled)

    first = Model.forward.__code__.co_firstlineno
    bundle = exported(Model().train(training), (torch.randn(2, 4),), training=training)
    origins = {origin for spec in bundle.kernels.values() for origin in spec.origin}
    assert f"aten.native_layer_norm (test_exporting.py:{first + 1})" in origins
    assert f"aten.gelu{'_backward' if training else ''} (test_exporting.py:{first + 2})" in origins
    assert all("test_exporting.py:" in origin for origin in origins)


@pytest.mark.parametrize("is_checked", [True, False])
def test_indices_are_checked_on_gpus_unless_an_option_says_no(*, is_checked: bool) -> None:
    table = torch.arange(12.0).view(4, 3)
    options = ferrite_torch.Options(check_indices=is_checked)
    bundle = exported(lambda table, at: table[at] + 1, (table, torch.tensor([0, 3])), options=options)
    assert [spec.facts.checked for spec in bundle.kernels.values()] == [is_checked]
    with pytest.raises(IndexOutOfBounds, match=r"test_exporting\.py:\d+\): index out of bounds"):
        reloaded(bundle)(table, torch.tensor([0, 4]))


def test_attention_stays_one_call_that_the_gpu_chooses_for() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=0.3) + 1

    q, k, v = (torch.randn(2, 3, 8, 16).transpose(1, 2).contiguous().transpose(1, 2) for _ in range(3))
    mask = torch.rand(8, 8) > 0.3
    mask[:, 0] = True
    bundle = exported(attend, (q, k, v, mask))
    (program,) = bundle.programs.values()
    externs = [step.target for step in program.steps if hasattr(step, "target")]
    assert externs == ["aten.scaled_dot_product_attention.default"]
    close(reloaded(bundle)(q, k, v, mask), attend(q, k, v, mask))


def test_attention_without_a_mask() -> None:
    q = torch.randn(1, 2, 8, 16)
    attend = F.scaled_dot_product_attention
    close(reloaded(exported(attend, (q, q, q)))(q, q, q), attend(q, q, q))


def test_targets_share_programs_and_have_binaries_of_their_own() -> None:
    x = torch.randn(8, 100)
    bundle = exported(lambda x: torch.softmax(x, -1), (x,), targets=["sm_80", "gfx942"], prebuilt=True)
    assert {(entry.form, str(entry.target)) for entry in bundle.binaries} == {
        ("cubin", "sm_80"), ("hsaco", "gfx942"), ("ptx", "sm_80")
    }  # fmt: skip
    assert {name for variant in bundle.entries["main"].variants for name in variant.targets} == {"sm_80", "gfx942"}


def test_bytes_are_the_same_every_time() -> None:
    model = GPT(SIZES).eval()
    tokens = torch.randint(0, 64, (2, 16))
    assert exported(model, (tokens,)).to_bytes() == exported(model, (tokens,)).to_bytes()


def test_no_path_of_this_machine_is_in_a_bundle() -> None:
    data = exported(lambda x: torch.softmax(x, -1), (torch.randn(8, 100),), prebuilt=True, ptx="sm_80").to_bytes()
    for place in (str(Path(__file__).parent), str(Path(torch.__file__).parent), str(Path.home()), "site-packages"):
        assert place.encode() not in data


def test_nested_arguments_and_results() -> None:
    def nested(pair, *, extra, mode="plain"):
        a, (b, c) = pair["a"], pair["rest"]
        assert mode == "plain"
        return {"sum": a + b, "list": [c * 2, None, 3], "tuple": (extra["e"] - a,)}

    pair = {"a": torch.randn(4), "rest": [torch.randn(4), torch.randn(2)]}
    extra = {"e": torch.randn(4)}
    loaded = reloaded(exported(nested, (pair,), kwargs={"extra": extra, "mode": "plain"}))
    found, expected = loaded(pair, extra=extra, mode="plain"), nested(pair, extra=extra)
    close(found, expected)
    with pytest.raises(GuardFailed, match="'plain' when the program was exported, it is 'other'") as caught:
        loaded(pair, extra=extra, mode="other")
    assert caught.value.name == "keywords.mode"


class Mode(IntEnum):
    FAST = 2


class Unit(str, Enum):  # noqa: UP042  # its text is not its value
    METRE = "m"


@pytest.mark.parametrize("value", [Mode.FAST, Unit.METRE, np.float64(0.5), -(1 << 63)], ids=repr)
def test_constants_of_a_subclass_are_fixed_as_plain_values(value: Any) -> None:
    loaded = reloaded(exported(lambda x, fixed: (x + 1, fixed), (torch.ones(3), value)))
    result, found = loaded(torch.ones(3), value)
    close(result, torch.full((3,), 2.0))
    assert found == value
    assert type(found) in (int, str, float)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1 << 63], ids=repr)
@pytest.mark.parametrize("place", ["arguments", "results"])
def test_numbers_that_no_bundle_can_hold_are_refused(value: Any, place: str) -> None:
    given = (torch.ones(3), value) if place == "arguments" else (torch.ones(3),)
    with pytest.raises(Unsupported, match=f"{place} of the model: {value!r} among"):
        exported(lambda x, fixed=None: x + 1 if fixed is not None else (x, value), given)


def test_negative_zero_is_another_constant_than_zero() -> None:
    loaded = reloaded(exported(lambda x, by: x / by, (torch.ones(3), -0.0)))
    close(loaded(torch.ones(3), -0.0), torch.full((3,), -torch.inf))
    with pytest.raises(GuardFailed, match=r"was -0\.0 when the program was exported"):
        loaded(torch.ones(3), 0.0)


def test_further_shapes_become_variants() -> None:
    def scaled(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * 2

    bundle = exported(scaled, (torch.randn(4, 8),), dynamic=[(torch.randn(6, 8),), (torch.randn(1, 32),)])
    assert len(bundle.entries["main"].variants) == 3
    loaded = reloaded(bundle)
    for shape in ((4, 8), (6, 8), (1, 32), (4, 8)):
        x = torch.randn(shape)
        close(loaded(x), scaled(x))
    with pytest.raises(GuardFailed, match=r"args\[0\]"):
        loaded(torch.randn(5, 8))


def test_results_that_alias_are_tensors_of_their_own() -> None:
    def aliasing(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x, x.t(), y, y.view(-1), y

    x = torch.randn(3, 4)
    found = reloaded(exported(aliasing, (x,)))(x)
    for mine, theirs in zip(found, aliasing(x), strict=True):
        assert torch.equal(mine, theirs)
    assert len({value.untyped_storage().data_ptr() for value in (*found, x)}) == 6


def test_constants_travel_with_the_bundle() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(6.0).view(2, 3).t(), persistent=False)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.plain = torch.tensor([1.0, 2.0])

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x @ self.table * self.plain + torch.tensor([0.5, -0.5])

    model = Holder()
    x = torch.randn(4, 3)
    bundle = exported(model, (x,))
    assert sorted(weight.kind for weight in bundle.entries["main"].weights)[:2] == ["buffer", "constant"]
    state = {"count": torch.zeros((), dtype=torch.int64)}
    loaded = load(Bundle.from_bytes(bundle.to_bytes()), weights=state, options=INTERPRET)
    close(loaded(x), model(x))
    close(loaded(x), model(x))
    assert state["count"] == model.count == 2


def test_dropout_is_drawn_anew() -> None:
    bundle = exported(lambda x: F.dropout(x, 0.5, training=True), (torch.ones(1000),))
    loaded = reloaded(bundle)
    first, second = loaded(torch.ones(1000)), loaded(torch.ones(1000))
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        (lambda x: x.add_(1), (torch.randn(3),), "writes to its tensor argument number 0"),
        (lambda x: x if x.sum() > 0 else -x, (torch.randn(3),), "depends on the values"),
        (lambda x: x.nonzero(), (torch.randn(3),), "depends on the values"),
        (lambda x: {1: x}, (torch.randn(3),), "have to be strings"),
        (lambda x: x, (torch.randn(3).to_sparse(),), "layout"),
        (lambda x: x, (object(),), "cannot be written down"),
    ],
)
def test_model_that_cannot_be_captured_says_why(model, inputs, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        exported(model, inputs)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"targets": []}, "a list of GPUs"),
        ({"targets": "sm_90"}, "a list of GPUs"),
        ({"targets": ["sm_x"]}, "'sm_x' is no target.*known: sm_75"),
        ({"targets": ["sm_90", "sm_12"]}, "'sm_12' is no target.*did you mean 'sm_1"),
        ({"targets": ["cpu", "sm_90"]}, "twice"),
        ({"targets": ["sm_90"], "ptx": "gfx942"}, "no target that PTX is made for; known: sm_75"),
        ({"targets": ["sm_90"], "tune": "ful"}, "tune is 'ful'.*did you mean 'full'"),
    ],
)
def test_arguments_are_checked_before_the_model_is_traced(wrong: dict[str, Any], reason: str) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("traced")

    with pytest.raises(OptionError, match=reason):
        exported(never, (torch.ones(3),), **wrong)


def test_cpu_bundle_runs_without_options() -> None:
    bundle = exported(lambda x: torch.softmax(x, -1), (torch.randn(4, 8),), targets=["cpu"])
    x = torch.randn(4, 8)
    close(load(bundle)(x), torch.softmax(x, -1))


MAKER = """
import torch
def make():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
def wrong():
    return 3
"""


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text(MAKER)
    out = tmp_path / "linear.ferrite"
    place = f"{tmp_path / 'models.py'}:make"
    assert main(["export", place, "-o", str(out), "--targets", "sm_90", "--no-binaries", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == out.stat().st_size
    assert Bundle.read(out).digest == facts["sha256"]
    for wrong in (f"{tmp_path / 'models.py'}:wrong", f"{tmp_path / 'models.py'}:none", "nothing", "no.module:make"):
        assert main(["export", wrong, "-o", str(out)]) == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [("def make():\n    return 1 / 0\n", "ZeroDivisionError: division by zero (PATH:2)"),
     ("x = 1\nimport nowhere\n", "No module named 'nowhere' (PATH:2)"), ("def (:\n", "(PATH:1)"),
     ("def make(x):\n    pass\n", "missing 1 required positional argument"), ("make = 3\n", "no function 'make'"),
     ("def make():\n    return 3\n", "has to return (model, inputs)"),
     ("def mke():\n    pass\n", "did you mean 'mke'")],
)  # fmt: skip
def test_what_the_users_file_raises_is_told_in_a_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.py"
    path.write_text(text)
    assert main(["export", f"{path}:make", "-o", str(tmp_path / "x.ferrite")]) == 2
    shown = capsys.readouterr().err
    assert said.replace("PATH", str(path)) in shown
    assert "Traceback" not in shown


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    bundle = exported(nn.Linear(4, 4), (torch.randn(2, 4),))
    folder = tmp_path / "bundles"
    folder.mkdir()
    os.mkfifo(folder / "pipe")  # stands for devices: what is renamed over one would take its place
    for path in (folder / "nowhere" / "x.ferrite", folder, folder / "pipe"):
        with pytest.raises(FileUnwritable, match=str(path)):
            bundle.save(path)
    assert (folder / "pipe").is_fifo()
    assert [path.name for path in folder.iterdir()] == ["pipe"]


def test_a_bundle_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    digest = exported(nn.Linear(4, 4), (torch.randn(2, 4),)).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Bundle.read(tmp_path / "file").digest == digest


@pytest.mark.parametrize(
    "arguments",
    [
        ["--targets", "sm_12"],
        ["--targets", "sm_90,gfx94"],
        ["--ptx", "sm_9"],
        ["--tune", "most"],
        ["-o", "no/such/folder.ferrite"],
        ["-o", "."],
    ],
    ids=" ".join,
)
def test_command_line_refuses_before_the_model_is_made(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text("raise AssertionError('imported')")
    assert main(["export", "models.py:make", *arguments]) == 2
    assert arguments[1].rpartition(",")[2] in capsys.readouterr().err
    assert main(["export", "models.py:make", *arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["status"] == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "models.py"]


def test_model_that_cannot_be_exported_has_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text("import torch\ndef make(): return (lambda x: x.nonzero()), (torch.ones(3),)")
    assert main(["export", f"{tmp_path / 'models.py'}:make", "-o", str(tmp_path / "x.ferrite"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "Unsupported"


KINDS = {
    "pointwise": lambda x: torch.lgamma(x.abs() + 1) * F.gelu(x) / (x + 2).pow(3),
    "integers": lambda x: ((x * 9).long() << (x * 3).long().clamp(0, 5)) ^ ((x * 7).int() >> 2),
    "norms": lambda x: F.layer_norm(x, (16,)) + F.group_norm(x.view(2, 4, 16), 2).view(8, 16),
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(0),
    "extremes": lambda x: (x.argmax(-1), x.amin(0), x.max(), x.median(-1).values),
    "moments": lambda x: torch.var_mean(x, -1) + torch.std_mean(x, 0),
    "scans": lambda x: (x.cumsum(-1), x.cumprod(0), x.cummax(-1).values, x.logcumsumexp(-1)),
    "sorts": lambda x: (*x.sort(-1), *x.topk(3, -1)),
    "random": lambda x: F.dropout(x, 0.5, True) + torch.rand_like(x) + torch.randint_like(x, 9),
    "lookups": lambda x: x[x.argmin(-1) % 8] + F.embedding(x.argmax(-1).clamp(0, 7), x),
    "updates": lambda x: x.index_add(0, x.argmax(-1) % 8, x).scatter_reduce(0, (x > 0).long(), x, "amax"),
    "windows": lambda x: F.avg_pool2d(F.max_pool2d(x.view(1, 1, 8, 16), 2), 2),
    "products": lambda x: torch.cat([x @ x.t(), x.view(2, 4, 16).bmm(x.view(2, 16, 4)).view(4, 8)]),
    "convolutions": lambda x: F.conv1d(x.view(1, 8, 16), x[:, :3].expand(8, 3).reshape(1, 8, 3)),
    "many": lambda x: torch._foreach_mul([x, x[0], x[:, 1]], 2.0),
    "complex": lambda x: torch.fft.rfft(x).abs(),
    "decompositions": lambda x: torch.linalg.qr(x).R,
    "half types": lambda x: (x.half() * 2).sum(-1) + x.bfloat16().cumsum(-1)[:, 0],
}


@pytest.mark.parametrize("name", KINDS)
def test_what_the_compiler_writes_needs_no_trust(name: str) -> None:
    """Its kernel texts are plainly kernels', its extern calls on the list, and its views surely in their buffers."""
    written = exported(KINDS[name], (torch.randn(8, 16),))
    bundle = Bundle.from_bytes(written.to_bytes())
    assert {spec.name: find_liberty(spec.source) for spec in bundle.kernels.values() if find_liberty(spec.source)} == {}
    load(bundle, options=INTERPRET)


@torch.library.custom_op("ferrite_exported::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_custom_operators_are_named_where_the_bundle_is_loaded() -> None:
    bundle = Bundle.from_bytes(exported(lambda x: twice(x.sin()) + 1, (torch.ones(8),)).to_bytes())
    with pytest.raises(PackageInvalid, match=r"operators=\['ferrite_exported.twice.default'\]"):
        load(bundle, options=INTERPRET)
    x = torch.randn(8)
    close(load(bundle, options=INTERPRET, operators=["ferrite_exported.twice.default"])(x), x.sin() * 2 + 1)


ARGUMENTS: dict[str, Any] = {"model": lambda x: x + 1, "example_inputs": (torch.ones(2),), "targets": ["cpu"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [({"model": 3}, "model is 3"), ({"example_inputs": torch.ones(2)}, "example_inputs is"),
     ({"targets": "cpu"}, "list of GPUs"), ({"targets": [90]}, "list of GPUs"), ({"targets": 3}, "list of GPUs"),
     ({"kwargs": 3}, "kwargs is 3"), ({"options": {}}, "options is"),
     ({"dynamic": 3}, "dynamic is 3"), ({"ptx": 80}, "ptx is 80"), ({"name": "a\nb"}, "name is"),
     ({"tune": "mx"}, "mx"),
     ({"training": 1}, "training is 1"), ({"prebuilt": None}, "prebuilt is None"),
     ({"example_inputs": ()}, "missing a required argument"), ({"kwargs": {"y": 1}}, "unexpected keyword"),
     ({"dynamic": [(1, 2)]}, "too many positional")],
)  # fmt: skip
def test_wrong_arguments_are_named_and_nobody_is_asked_to_report_them(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        ferrite_torch.export(**{**ARGUMENTS, **given})
    assert "report" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [(3, (1,), "model is 3"), (lambda x: x, (), "missing a required argument"), (nn.Linear(2, 2), (1, 2), "too many")],
)
def test_explain_names_what_cannot_be_called(model: Any, inputs: tuple[Any, ...], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ferrite_torch.explain(model, *inputs)


def test_a_step_that_takes_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped_calls, "_OPERANDS", {})  # an op that nothing here knows

    def strict(x: Tensor) -> Tensor:
        return strict_mode(lambda x: (x.sin(),), (x * 2,))[0] + 1  # type: ignore[no-any-return]

    with pytest.raises(
        Unsupported,
        match=r"test_exporting\.py:\d+\): higher_order\.strict_mode takes functions, which a bundle cannot.*choose",
    ):
        exported(strict, (torch.ones(4, 2),))


class Choosing(nn.Module):
    """A model that chooses by its input, inside of a choice, with weights and a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 1, lambda x: self.first(x).relu(), lambda x: x * self.scale, (x,))

        return torch.cond(x.sum() > 0, inner, self.second, (x,)) + 1


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("value", [2.0, 0.1, -1.0])
def test_choices_with_weights_are_in_bundles(value: float, target: str) -> None:
    torch.manual_seed(0)
    model = Choosing()
    x = torch.full((2, 4), value)
    loaded = reloaded(exported(model, (x,), targets=[target]), model)
    with torch.no_grad():
        close(loaded(x), model(x))
