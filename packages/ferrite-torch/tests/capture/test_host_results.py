from __future__ import annotations

import operator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ferrite_torch.capture.host_results import HOST_RESULTS, correct_devices


def test_generator_states_of_attention_are_on_the_cpu() -> None:
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    graph = torch.fx.Graph()
    with FakeTensorMode():
        fakes = tuple(torch.empty(2, device="cuda") for _ in range(4))
    call = graph.call_function(op)
    call.meta["val"] = fakes
    parts = [graph.call_function(operator.getitem, (call, place)) for place in range(4)]
    for part, fake in zip(parts, fakes, strict=True):
        part.meta["val"] = fake
    correct_devices(graph)
    assert [part.meta["val"].device.type for part in parts] == ["cuda", "cuda", "cpu", "cpu"]
    assert [fake.device.type for fake in call.meta["val"]] == ["cuda", "cuda", "cpu", "cpu"]


def test_the_ops_exist() -> None:
    for name in HOST_RESULTS:
        _, stem, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, stem), overload)
