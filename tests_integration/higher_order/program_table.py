"""All programs over higher-order ops, by name."""

from __future__ import annotations

import branch_programs
import kernel_programs
import region_programs
import scan_programs
import transform_programs
from program import Program

MODULES = (branch_programs, scan_programs, region_programs, transform_programs, kernel_programs)
PROGRAMS: dict[str, Program] = {name: program for module in MODULES for name, program in module.PROGRAMS.items()}
