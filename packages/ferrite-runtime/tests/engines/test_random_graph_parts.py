"""Random programs that a CUDA graph cannot hold as a whole give what they give from the host."""

from __future__ import annotations

import random

import pytest

from engines.test_graphs import DEVICE, graphed
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.formats.program import Program
from graph_part_programs import JOIN, KERNELS, STEP, TIMES, call_of, eight, launch, made, ref
from runtime_kernels import layout, program

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


class Writer:
    """Writes a random program over eight numbers, with views, buffers that become others, and what the host reads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps: list[dict] = []
        self.tensors = ["x", "w"]
        self.scalars: list[str] = []
        self.count = 0

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def write(self, length: int) -> dict:
        for _ in range(length):
            self.random.choice(
                [self.launch] * 6 + [self.view, self.reuse, self.item, self.host, self.copy, self.free]
            )()
        wanted = sorted(set(self.random.sample(self.tensors, min(3, len(self.tensors))) + self.tensors[-1:]))
        outputs = [{"value": name} for name in wanted] + [{"scalar": name} for name in self.scalars[-1:]]
        return program([eight("x"), eight("w")], KERNELS, self.steps, outputs, "cuda")

    def launch(self) -> None:
        out, a, b = self.name("t"), self.random.choice(self.tensors), self.random.choice(self.tensors)
        if self.scalars and self.random.random() < 0.2:
            self.steps += made(TIMES, out, a, self.random.choice(self.scalars))
        else:
            self.steps += made(JOIN, out, a, b) if self.random.random() < 0.5 else made(STEP, out, a)
        self.tensors.append(out)

    def view(self) -> None:
        view = self.name("v")
        base = self.random.choice(self.tensors)
        self.steps.append({"do": "view", "name": view, "base": base, **layout([8]), "offset": 0})
        self.tensors.append(view)

    def reuse(self) -> None:
        owned = [n for n in self.tensors if n[0] == "t" and not any(s.get("base") == n for s in self.steps)]
        if owned:
            source, out = self.random.choice(owned), self.name("t")
            self.steps += [{"do": "reuse", "name": out, "from": source, **layout([8])}]
            self.steps.append(launch(STEP, self.random.choice(["x", "w"]), out))
            self.tensors.remove(source)
            self.tensors.append(out)

    def item(self) -> None:
        first, number = self.name("f"), self.name("i")
        base = self.random.choice(self.tensors)
        self.steps.append({"do": "view", "name": first, "base": base, **layout([1]), "offset": 3})
        self.steps.append({"do": "item", "name": number, "from": first, "dtype": "f32"})
        self.scalars.append(number)

    def host(self) -> None:
        out = self.name("h")
        source = self.random.choice(self.tensors)
        self.steps.append(call_of("graph_parts.keep.default", [out], ref(source)))
        self.tensors.append(out)

    def copy(self) -> None:
        to, source = (self.random.choice(self.tensors) for _ in range(2))
        self.steps.append({"do": "copy", "to": to, "from": source})

    def free(self) -> None:
        known = [name for name in self.tensors if name not in ("x", "w")]
        if len(known) > 3:
            name = self.random.choice(known)
            self.steps.append({"do": "free", "names": [name]})
            self.tensors.remove(name)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_what_the_host_gives(seed: int, keeper: list) -> None:
    mapping = Writer(seed).write(24)
    host = InterpretedEngine.load(Program.from_mapping(mapping)).first(DEVICE)
    call, _ = graphed(mapping, least=1 + seed % 3)
    moving = random.Random(seed)
    inputs = [torch.randn(8), torch.randn(8)]
    found, lent = [], []
    for _ in range(6):
        place = moving.randrange(3)
        if place < 2:
            inputs[place] = torch.randn(8)
        theirs = [each.clone() for each in inputs]
        lent += inputs
        expected = host(list(theirs))
        results = call(list(inputs))
        found.append((results, [each.clone() if hasattr(each, "clone") else each for each in expected]))
        for ours, other in zip(inputs, theirs, strict=True):
            assert torch.equal(ours, other)
        inputs = [each.clone() for each in inputs] if moving.random() < 0.3 else inputs
    aliases = {each.untyped_storage().data_ptr() for each in lent}
    for results, expected in found:
        for result, wanted in zip(results, expected, strict=True):
            if not hasattr(result, "untyped_storage"):
                assert result == wanted
            elif result.untyped_storage().data_ptr() not in aliases:
                assert torch.equal(result, wanted)
