"""The grid of a launch in host text: numbers where they are known, expressions of the launch's sizes elsewhere."""

from __future__ import annotations

from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.formats.expressions import evaluate, print_expr
from ferrite_runtime.host.launch_text import Site


def programs_text(site: Site, kernel: DeviceKernel) -> str:
    """Returns the number of programs: a literal where it is known, an expression of the launch's sizes elsewhere."""
    assert kernel.config is not None
    spec, blocks = site.kernel, dict(kernel.config.blocks)
    sizes = constant_sizes(site)
    if sizes is not None:
        return str(spec.programs(sizes, blocks))
    rename = {name: print_expr(size) for name, size in site.sizes.items()}
    rename |= {axis.name: print_expr(axis.size, rename) for axis in spec.axes}
    rename |= {name: str(block) for name, block in {**blocks, **spec.blocks}.items()}
    return print_expr(spec.grid_at(blocks)[0], rename)


def constant_sizes(site: Site) -> dict[str, int] | None:
    """Returns the sizes of a launch where all are known."""
    if not all(isinstance(size, int) for size in site.sizes.values()):
        return None
    return {name: evaluate(size, {}) for name, size in site.sizes.items()}


def constant_depths(site: Site, kernel: DeviceKernel) -> tuple[int, int] | None:
    """Returns the numbers of programs along the second and third axis where they are known."""
    if site.kernel.is_flat:
        return (1, 1)
    sizes = constant_sizes(site)
    if sizes is None or kernel.config is None:
        return None
    return site.kernel.depths(sizes, dict(kernel.config.blocks))
