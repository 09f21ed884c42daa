"""Losses of linear layers in chunks of rows: which are found in unmodified programs, with equal numbers; which stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ferrite_torch
from ferrite_torch.rewrites.losses.chunks import chunk_losses
from ferrite_torch.thresholds import LossThresholds
from ferrite_torch.torch_private.whole_ops import linear_loss

BATCH, LENGTH, WIDTH, CLASSES = 2, 9, 16, 40
Loss = Callable[..., Tensor]


def operands(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Returns hidden rows, a weight and a bias that want gradients, labels of which one is ignored, and factors."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    labels = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=generator)
    labels[0, 3] = -100
    return {
        "h": drawn(BATCH, LENGTH, WIDTH).requires_grad_(),
        "w": drawn(CLASSES, WIDTH).requires_grad_(),
        "b": drawn(CLASSES).requires_grad_(),
        "labels": labels,
        "valid": labels.clamp(min=0),
        "weights": torch.rand(CLASSES, generator=generator, dtype=torch.float64).to(dtype),
        "mask": torch.rand(BATCH * LENGTH, generator=generator, dtype=torch.float64).to(dtype),
    }


def flat(x: Tensor) -> Tensor:
    return x.view(-1, x.size(-1))


def entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(flat(logits), labels.reshape(-1), **options)


def gpt(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """The loss of GPT-2, as transformers had it."""
    logits = F.linear(h, w)
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))


def tied(w: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    return gpt(torch.tanh(F.embedding(valid, w)), w, labels)


def llama(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """``ForCausalLMLoss`` of transformers, with ``num_items_in_batch``."""
    logits = F.linear(h, w).float()
    labels = F.pad(labels, (0, 1), value=-100)
    shift_labels = labels[..., 1:].contiguous()
    logits = logits.view(-1, CLASSES)
    shift_labels = shift_labels.view(-1).to(logits.device)
    return F.cross_entropy(logits, shift_labels, ignore_index=-100, reduction="sum") / 7


def with_z_loss(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    logits = flat(F.linear(h, w).float())
    z = torch.logsumexp(logits, dim=-1)
    return F.cross_entropy(logits, labels.view(-1)) + 1e-2 * z.square().mean()


def by_gather(h: Tensor, w: Tensor, valid: Tensor) -> Tensor:
    logits = h @ w.t()
    picked = logits.gather(-1, valid.unsqueeze(-1))
    return (torch.logsumexp(logits, -1, keepdim=True) - picked).squeeze(-1).mean()


def smoothed_by_hand(h: Tensor, w: Tensor, valid: Tensor) -> Tensor:
    logarithms = F.log_softmax(F.linear(h, w), dim=-1)
    nll = -logarithms.gather(dim=-1, index=valid[..., None]).squeeze(-1)
    return (0.9 * nll - 0.1 * logarithms.mean(dim=-1)).mean()


def autocast(h: Tensor, w: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return entropy(F.linear(h, w, b), labels)


FOUND: dict[str, tuple[Loss, str]] = {
    "plain": (lambda h, w, labels: entropy(F.linear(h, w), labels), "h w labels"),
    "bias": (lambda h, w, b, labels: entropy(F.linear(h, w, b), labels, reduction="sum"), "h w b labels"),
    "matmul": (lambda h, w, labels: entropy(h @ w.T, labels), "h w labels"),
    "smoothing": (lambda h, w, labels: entropy(F.linear(h, w), labels, label_smoothing=0.1), "h w labels"),
    "weights": (lambda h, w, labels, c: entropy(F.linear(h, w), labels, weight=c), "h w labels weights"),
    "weights, smoothing": (
        lambda h, w, labels, c: entropy(F.linear(h, w), labels, weight=c, label_smoothing=0.2, reduction="sum"),
        "h w labels weights",
    ),
    "weights, smoothing, mean": (
        lambda h, w, labels, c: entropy(F.linear(h, w), labels, weight=c, label_smoothing=0.2),
        "h w labels weights",
    ),
    "another ignored label": (lambda h, w, x: entropy(F.linear(h, w), x, ignore_index=3), "h w valid"),
    "all rows ignored": (lambda h, w, x: entropy(F.linear(h, w), torch.full_like(x, -100)), "h w valid"),
    "soft cap": (lambda h, w, labels: entropy(torch.tanh(F.linear(h, w) / 5.0) * 5.0, labels), "h w labels"),
    "temperature": (lambda h, w, labels: entropy(0.5 * F.linear(h, w).div(0.7), labels), "h w labels"),
    "masked mean": (
        lambda h, w, labels, m: (entropy(F.linear(h, w), labels, reduction="none") * m).sum() / m.sum(),
        "h w labels mask",
    ),
    "z loss": (with_z_loss, "h w labels"),
    "nll": (lambda h, w, x: F.nll_loss(flat(F.linear(h, w)).log_softmax(-1), x.view(-1)), "h w labels"),
    "gather": (by_gather, "h w valid"),
    "smoothed by hand": (smoothed_by_hand, "h w valid"),
    "classes second": (lambda h, w, x: F.cross_entropy(F.linear(h, w).transpose(1, 2), x), "h w labels"),
    "rows of some positions": (lambda h, w, x: entropy(F.linear(h, w)[:, 1::2].contiguous(), x[:, 1::2]), "h w labels"),
    "gpt": (gpt, "h w labels"),
    "tied": (tied, "w labels valid"),
    "llama": (llama, "h w labels"),
    "twice": (lambda h, w, x: entropy(F.linear(h, w), x) - 2 * entropy(F.linear(2 * h, w), x), "h w labels"),
}

STAYS: dict[str, tuple[Loss, str, str]] = {
    "returned": (
        lambda h, w, x: entropy(y := F.linear(h, w), x) + y[0, 0, 0],
        "h w labels",
        "getitem takes elements of rows",
    ),
    "accuracy": (
        lambda h, w, x: entropy(y := F.linear(h, w), x) + 0 * y.argmax(-1).double().mean(),
        "h w labels",
        "argmax reads them as well",
    ),
    "losses of rows": (
        lambda h, w, x: entropy(F.linear(h, w), x, reduction="none").max(),
        "h w labels",
        "max reads them as well",
    ),
    "labels with probabilities": (
        lambda h, w, c: F.cross_entropy(flat(F.linear(h, w)), c.softmax(0).expand(BATCH * LENGTH, CLASSES)),
        "h w weights",
        "cross_entropy takes no label for each row",
    ),
    "factors with a gradient": (
        lambda h, w, b, x: (entropy(F.linear(h, w), x, reduction="none") * b[: BATCH * LENGTH]).sum(),
        "h w b labels",
        "mul combines them with what is no number for each row",
    ),
    "some classes": (
        lambda h, w, x: entropy(F.linear(h, w)[..., :30].contiguous(), x.clamp(max=29)),
        "h w labels",
        "",
    ),
    "written logits": (lambda h, w, x: entropy(F.linear(h, w).mul_(2.0), x), "h w labels", "mul_ reads them as well"),
    "products of sums": (
        lambda h, w, x: (y := flat(F.linear(h, w))).logsumexp(-1).sum() * F.cross_entropy(y, x.view(-1)),
        "h w labels",
        "mul takes a sum of all rows",
    ),
}


def outcome(loss: Loss, given: Sequence[Tensor]) -> list[Tensor]:
    """Returns a loss and the gradients of what wants one."""
    own = [each.detach().clone().requires_grad_(each.requires_grad) for each in given]
    result = loss(*own)
    wanted = [each for each in own if each.requires_grad]
    return [result.detach(), *(torch.autograd.grad(result, wanted) if wanted and result.requires_grad else ())]


def captured(loss: Loss, given: Sequence[Tensor], **dynamo: Any) -> tuple[list[Tensor], int]:
    """Returns what a loss gives where it is put in chunks and runs op by op, and how many were found."""
    found = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(chunk_losses(module, "always"))
        calls = module.graph.find_nodes(op="call_function", target=linear_loss)
        assert len(calls) == found[-1]
        if calls:
            assert not any(node.target in (F.linear, F.cross_entropy) for node in module.graph.nodes)
        return module.forward

    return outcome(torch.compile(loss, backend=backend, fullgraph=True, **dynamo), given), sum(found)


def reasons() -> list[str]:
    return [text.partition(" stay in memory: ")[2] for text in ferrite_torch.statistics()["losses"]]


@pytest.fixture(autouse=True)
def fresh_statistics() -> None:
    ferrite_torch.reset_statistics()


@pytest.mark.parametrize("name", FOUND)
def test_losses_are_found_and_agree(name: str) -> None:
    loss, names = FOUND[name]
    given = [operands()[each] for each in names.split()]
    expected = outcome(loss, given)
    found, count = captured(loss, given)
    assert count == (2 if name == "twice" else 1)
    tolerance = 1e-5 if name in ("llama", "z loss") else 1e-12  # these convert to float32
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", STAYS)
def test_logits_that_something_else_needs_stay(name: str) -> None:
    loss, names, reason = STAYS[name]
    given = [operands()[each] for each in names.split()]
    expected = outcome(loss, given)
    found, count = captured(loss, given)
    assert count == 0
    assert not reason or [text for text in reasons() if reason in text]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wanted", ["h", "w", "b", "h b", ""])
def test_gradients_of_some_operands(wanted: str) -> None:
    loss, names = FOUND["bias"]
    given = [operands()[each].detach().requires_grad_(each in wanted.split()) if each in "hwb" else operands()[each]
             for each in names.split()]  # fmt: skip
    found, count = captured(loss, given)
    assert count == 1
    for one, other in zip(found, outcome(loss, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "bias", "soft cap", "gpt", "z loss"])
def test_errors_are_at_most_twice_those_of_eager_mode(name: str, dtype: torch.dtype) -> None:
    loss, names = FOUND[name]
    given = [operands(dtype)[each] for each in names.split()]
    exact = outcome(loss, [each.double().detach().requires_grad_() if each.requires_grad else each for each in given])
    found, count = captured(loss, given)
    assert count == 1
    for one, other, true in zip(found, outcome(loss, given), exact, strict=True):
        assert one.dtype is other.dtype
        # Sixteen rows are four chunks, each of which rounds the gradient of the weight: in float32 the error in norm
        # was 2.2 times that of eager mode, where a library adds up so few products in an order of its own.
        scale = 2 * torch.finfo(dtype).eps * true.abs().max()
        assert (one.double() - true).norm() <= 2 * (other.double() - true).norm() + scale


def test_many_rows_in_few_chunks_keep_the_precision_of_the_weights_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(4096, 32, generator=generator).bfloat16()
    w = (0.2 * torch.randn(64, 32, generator=generator)).bfloat16().requires_grad_()
    labels = torch.randint(0, 64, (4096,), generator=generator)

    def loss(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w), labels)

    (_, exact), (_, eager) = (
        outcome(loss, [h.double(), w.detach().double().requires_grad_(), labels]),
        outcome(loss, [h, w, labels]),
    )
    (_, found), count = captured(loss, [h, w, labels])
    assert count == 1
    assert (found - exact).norm() <= 2 * (eager - exact).norm()


def test_autocast_computes_in_its_type() -> None:
    given = [operands(torch.float32)[each] for each in ("h", "w", "b", "labels")]
    found, count = captured(autocast, given)
    assert count == 1
    for one, other in zip(found, outcome(autocast, given), strict=True):
        assert one.dtype is other.dtype is torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-3)


def test_sizes_that_a_call_tells_stay_and_say_so() -> None:
    loss, names = FOUND["plain"]
    _, count = captured(loss, [operands()[each] for each in names.split()], dynamic=True)
    assert (count, reasons()) == (0, ["how many there are depends on the call"])


@pytest.mark.parametrize(
    "loss",
    [
        lambda h, w, x: torch.func.grad(lambda w: entropy(F.linear(h, w), x))(w).sum(),
        lambda h, w, x: torch.func.vmap(lambda h, x: F.cross_entropy(F.linear(h, w), x))(h, x).sum(),
    ],
    ids=["grad", "vmap"],
)
def test_transforms_are_left_alone(loss: Loss) -> None:
    given = [operands()[each] for each in ("h", "w", "labels")]
    found, count = captured(loss, given)
    assert count == 0
    torch.testing.assert_close(found, outcome(loss, given))


def test_checkpoints_are_left_alone() -> None:
    def loss(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        return checkpoint(lambda h, w: entropy(F.linear(h, w), labels), h, w, use_reentrant=False)  # type: ignore[no-any-return]

    given = [operands()[each] for each in ("h", "w", "labels")]
    found, count = captured(loss, given)
    assert count == 0
    torch.testing.assert_close(found, outcome(loss, given))


def test_what_is_written_in_between_is_left_alone() -> None:
    def loss(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        labels = labels.clone()
        logits = F.linear(h, w)
        labels[0] = 1
        return entropy(logits, labels)

    given = [operands()[each] for each in ("h", "w", "labels")]
    found, count = captured(loss, given)
    assert "something that they are computed from is written to" in " ".join(reasons())
    torch.testing.assert_close(found, outcome(loss, given))
    assert count == 0


def strict(loss: Loss, **options: Any) -> Loss:
    chosen = {"fallback": False, "policy": {"product_in_place_bytes": 0}, **options}
    return torch.compile(loss, backend="ferrite", options=chosen)  # type: ignore[no-any-return]


class TestCompiled:
    """The whole way, in Triton's interpreter."""

    @pytest.mark.parametrize("name", ["llama", "tied", "weights, smoothing", "z loss", "all rows ignored", "gather"])
    def test_numbers(self, name: str) -> None:
        loss, names = FOUND[name]
        given = [operands(torch.float32)[each] for each in names.split()]
        found = outcome(strict(loss, chunk_losses="always"), given)
        (told,) = ferrite_torch.statistics()["losses"]
        assert "chunks" in told
        for one, other in zip(found, outcome(loss, given), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)

    @pytest.mark.parametrize("classes", [9001, 9024])
    def test_long_rows_in_half_types(self, classes: int) -> None:
        generator = torch.Generator().manual_seed(0)
        h, w = (torch.randn(n, 8, generator=generator).bfloat16().requires_grad_() for n in (10, classes))
        labels = torch.randint(0, classes, (10,), generator=generator)

        def loss(h: Tensor, w: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(F.linear(h, w).float(), labels)

        found, eager = outcome(strict(loss, chunk_losses="always"), [h, w, labels]), outcome(loss, [h, w, labels])
        for one, other in zip(found, eager, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)

    def test_labels_out_of_range_are_refused(self) -> None:
        loss, names = FOUND["plain"]
        given = [operands(torch.float32)[each] for each in names.split()]
        compiled = strict(loss, chunk_losses="always")
        compiled(*given)
        for label in (CLASSES, -1):
            given[2][1, 2] = label
            for each in (loss, compiled):
                with pytest.raises(IndexError):
                    each(*given)

    def test_second_derivatives_are_refused(self) -> None:
        loss, names = FOUND["plain"]
        given = [operands(torch.float32)[each] for each in names.split()]
        for wanted in (0, 1):
            own = [each.detach().requires_grad_(position == wanted) if position < 2 else each
                   for position, each in enumerate(given)]  # fmt: skip
            result = strict(loss, chunk_losses="always")(*own)
            (slope,) = torch.autograd.grad(result, own[wanted], create_graph=True)
            with pytest.raises(RuntimeError, match="double backward"):
                (result + slope.sum()).backward()

    def test_small_logits_and_unwilling_users(self) -> None:
        loss, names = FOUND["plain"]
        given = [operands(torch.float32)[each] for each in names.split()]
        for options in ({}, {"chunk_losses": "never"}):
            torch.compiler.reset()
            torch.testing.assert_close(outcome(strict(loss, **options), given), outcome(loss, given))
        assert ferrite_torch.statistics()["losses"] == {}

    def test_gradients_that_might_overflow_are_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ferrite_torch.rewrites.losses.chunks.LOSSES", LossThresholds(logits_bytes=1))
        loss, names = FOUND["plain"]
        for dtype, word in ((torch.float16, "overflow"), (torch.bfloat16, "never lie in memory")):
            (told,) = ferrite_torch.explain(loss, *(operands(dtype)[each] for each in names.split())).losses
            assert word in told

    def test_explain_says_what_is_saved(self) -> None:
        loss, names = FOUND["gpt"]
        given = [operands(torch.float32)[each] for each in names.split()]
        found = ferrite_torch.explain(loss, *given, options={"chunk_losses": "always"})
        (told,) = found.losses
        assert "16 rows in" in told
        assert "of logits never lie in memory" in told
        assert told in str(found)


def test_nested_tensors_are_left_alone() -> None:
    layer = torch.nn.Linear(8, 3)
    rows = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (2, 5, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(layer(x).values(), torch.ones(10, dtype=torch.int64))

    torch.testing.assert_close(strict(loss)(x), loss(x))
