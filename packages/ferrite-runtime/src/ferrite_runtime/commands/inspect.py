"""Shows what is in a file: entries, programs, kernels, binaries, measurements, and the configs that would run."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.commands.measuring import format_time
from ferrite_runtime.commands.output import FINE, add_json, format_bytes, print_json, print_table
from ferrite_runtime.commands.programs import add_file, read_file
from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices
from ferrite_runtime.errors import OptionError
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.candidates import configs, launch_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    parser.add_argument("--device", default="h200", help="descriptor of the GPU to plan for (see `devices`)")
    parser.add_argument("--kernel", metavar="NAME", help="print one kernel's text, and all its candidates")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    bundle = read_file(arguments.file)
    device = find_device(arguments.device)
    if arguments.kernel is not None:
        found = [spec for spec in bundle.kernels.values() if arguments.kernel in (spec.name, spec.id)]
        if not found:
            names = ", ".join(sorted({spec.name for spec in bundle.kernels.values()}))
            raise OptionError(f"{bundle.name} has no kernel {arguments.kernel!r}; it has {names}")
        if arguments.json:
            print_json([{**spec.to_mapping(), "plan": plan_kernel(spec, device)} for spec in found])
        else:
            _print_kernels(found, device)
        return FINE
    summary = summarise(bundle, device)
    if arguments.json:
        print_json(summary)
    else:
        _print_summary(bundle, summary)
    return FINE


def find_device(name: str) -> DeviceFacts:
    """Returns a described device by the name of its descriptor; raises `OptionError` if there is none."""
    known = known_devices()
    if name not in known:
        raise OptionError(f"no device is described as {name!r}; known: {', '.join(known)}")
    return known[name]


def plan_kernel(spec: KernelSpec, device: DeviceFacts) -> dict[str, Any]:
    """Returns what would run of a kernel on a device, at the expected sizes: configs, programs, bytes."""
    sizes = {param.name: param.hint or 0 for param in spec.params if param.role == "size"}
    found = configs(spec, device, "full")
    first = dict(found[0].blocks)
    return {
        "configs": [str(config) for config in found],
        "programs": spec.programs(sizes, first) if spec.axes or all(sizes.values()) else None,
        "bytes": launch_bytes(spec, device),
    }


def summarise(bundle: Bundle, device: DeviceFacts) -> dict[str, Any]:
    """Returns what is in a bundle as JSON."""
    binaries = Counter((str(entry.target), entry.form) for entry in bundle.binaries)
    return {
        "name": bundle.name,
        "sha256": bundle.digest,
        "producer": dict(bundle.producer),
        "entries": {
            name: {"tensors": entry.tensors, "weights": len(entry.weights), "variants": len(entry.variants)}
            for name, entry in bundle.entries.items()
        },
        "programs": {
            name: {part: len(getattr(each, part)) for part in ("inputs", "kernels", "steps", "outputs")}
            for name, each in bundle.programs.items()
        },
        "kernels": [_kernel_summary(bundle, spec, device) for spec in bundle.kernels.values()],
        "binaries": [{"target": t, "form": f, "count": n} for (t, f), n in sorted(binaries.items())],
        "measurements": len(bundle.tuning),
        "planned_for": device.name,
    }


def _kernel_summary(bundle: Bundle, spec: KernelSpec, device: DeviceFacts) -> dict[str, Any]:
    plan = plan_kernel(spec, device)
    uses = [entry.header for entry in bundle.binaries if entry.kernel == spec.id]
    best = min((r.ms for r in bundle.tuning if r.situation.kernel == spec.id and r.is_chosen), default=None)
    return {
        "name": spec.name,
        "id": spec.id,
        "form": spec.form,
        "axes": {axis.name: axis.hint for axis in spec.axes},
        "origin": list(spec.origin),
        "config": plan["configs"][0],
        "candidates": len(plan["configs"]),
        "programs": plan["programs"],
        "bytes": plan["bytes"],
        "registers": max((header["registers"] or 0 for header in uses), default=None),
        "shared": max((header["shared"] for header in uses), default=None),
        "measured_ms": best,
    }


def _print_summary(bundle: Bundle, summary: dict[str, Any]) -> None:
    made = " ".join(summary["producer"].values())
    print(f"{bundle.name}{f', made by {made}' if made else ''}{f', sha256 {bundle.digest}' if bundle.digest else ''}")
    for name, entry in summary["entries"].items():
        print(f"  entry {name}: {entry['tensors']} tensors, {entry['weights']} weights, {entry['variants']} variants")
    for name, each in summary["programs"].items():
        print(f"  program {name}: {each['inputs']} inputs, {each['steps']} steps, {each['kernels']} kernels")
    for entry in summary["binaries"]:
        print(f"  binaries for {entry['target']}: {entry['count']} {entry['form']}")
    print(f"  measurements: {summary['measurements']}\n")
    rows = [
        (
            row["name"],
            row["form"],
            " ".join(f"{name}={hint}" for name, hint in row["axes"].items()) or "-",
            row["config"],
            row["candidates"],
            "-" if row["programs"] is None else row["programs"],
            "-" if row["bytes"] is None else format_bytes(row["bytes"]),
            "-" if row["registers"] is None else row["registers"],
            format_time(row["measured_ms"]),
        )
        for row in summary["kernels"]
    ]
    print_table(
        ("kernel", "form", "axes", f"config on {summary['planned_for']}", "of", "programs", "moves", "regs", "µs"),
        rows,
    )


def _print_kernels(found: list[KernelSpec], device: DeviceFacts) -> None:
    for spec in found:
        plan = plan_kernel(spec, device)
        print(f"{spec.name} {spec.id}\n{spec.form} <- {', '.join(spec.origin) or 'unknown'}")
        for config in plan["configs"]:
            print(f"  {config}")
        print(f"\n{spec.source}")
