"""Bundles with something changed, every digest in them right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bundle_cases import opened, reseal  # noqa: E402
from bundle_sources import make_sources  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    Options,
    load,
)
from ferrite_runtime.formats.canonical_json import kernel_id  # noqa: E402

Manifest = dict[str, Any]


INTERPRET = Options(interpret=True, use_cache=False)


PROGRAM = "main.inference"


SOURCES = {source.name: source for source in make_sources()}


def changed(change: Callable[[Manifest], None], source: str = "example") -> Bundle:
    """Returns a bundle with something changed; every digest in it is right."""
    manifest, blobs = opened(SOURCES[source].data)
    change(manifest)
    text = json.dumps({**manifest, "kernels": []})
    for kernel in manifest["kernels"]:
        identity = kernel_id(kernel)
        text = text.replace(kernel["id"], identity)
        kernel["id"] = identity
    kernels = sorted(manifest["kernels"], key=lambda kernel: kernel["id"])
    return Bundle.from_bytes(reseal({**json.loads(text), "kernels": kernels}, blobs))


def loaded(change: Callable[[Manifest], None], source: str = "example", **more: Any) -> Any:
    bundle = changed(change, source)
    return load(bundle, weights=SOURCES[source].weights(), options=INTERPRET, **more)


def steps_of(manifest: Manifest) -> list[Manifest]:
    return next(iter(manifest["programs"].values()))["steps"]


def with_steps(*steps: Manifest, output: str | None = None) -> Callable[[Manifest], None]:
    """Puts steps before those of a program; the first result is an output, if it is named."""

    def change(manifest: Manifest) -> None:
        steps_of(manifest)[:0] = steps
        if output is not None:
            next(iter(manifest["programs"].values()))["outputs"][0] = {"value": output}

    return change


def extern(target: str, *arguments: Any, results: tuple[str, ...] = (), **keywords: Any) -> Manifest:
    return {"do": "extern", "target": target, "args": list(arguments), "kwargs": keywords, "results": list(results)}


def alloc(name: str, *shape: Any) -> Manifest:
    return {"do": "alloc", "name": name, "dtype": "f32", "shape": list(shape), "strides": [1]}


def let(name: str, value: Any) -> Manifest:
    return {"do": "let", "name": name, "value": value}


def view(name: str, base: str, size: Any, offset: Any = 0, **more: Any) -> Manifest:
    step = {"do": "view", "name": name, "base": base, "dtype": "f32", "shape": [size], "strides": [1]}
    return {**step, "offset": offset, **more}


def with_steps_last(*steps: Manifest) -> Callable[[Manifest], None]:
    return lambda manifest: steps_of(manifest).extend(steps)
