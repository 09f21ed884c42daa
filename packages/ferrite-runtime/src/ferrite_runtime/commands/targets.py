"""Devices as commands take them: a described one by name, or the GPU at hand."""

from __future__ import annotations

import argparse

from ferrite_runtime.devices.descriptors import DeviceFacts, device_facts, known_devices
from ferrite_runtime.errors import DeviceUnavailable


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names a device."""
    parser.add_argument("--device", metavar="NAME", help="a described device, such as h200 (default: the GPU at hand)")


def choose_device(arguments: argparse.Namespace) -> DeviceFacts:
    """Returns the device that the arguments mean.

    Raises:
        DeviceUnavailable: none of that name is described, or there is no GPU at hand.
    """
    if arguments.device is not None:
        known = known_devices()
        found = known.get(arguments.device) or next((d for d in known.values() if d.name == arguments.device), None)
        if found is None:
            raise DeviceUnavailable(f"no device {arguments.device!r} is described; known: {', '.join(known)}")
        return found
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable("torch, which would tell the GPU, is not installed; name one with --device") from error
    if not torch.cuda.is_available():
        raise DeviceUnavailable("there is no GPU here; name one with --device, such as --device h200")
    return device_facts(torch.cuda.current_device())
