"""Corrections of the roofline model, by which times of kernels are predicted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RooflineCorrections:
    """What a kernel takes beyond its bytes and operations at the rates of a device; see `prediction`.

    Those that say so are fitted to times on an H200: see the cost model in `benchmarks/RESULTS.md`.

    Attributes:
        lane_share: of the rate of instructions of lanes. Fitted.
        access_operations: instructions per element and buffer for addresses, masks and conversions. Fitted.
        reduced_operations: instructions per element and reduction, and what threads exchange. Fitted.
        scanned_operations: instructions per element of a scan. Fitted.
        window_operations: instructions per further element of a window: its address, mask and load. Fitted.
        transposed_operations: instructions per element that threads exchange. Fitted.
        turn_seconds: what each turn of a loop over the reduction axis but the first takes beside that. Fitted.
        overlap_loss: share of the shorter of traffic and arithmetic that is not hidden behind the longer. Set: with
            more large copies would be off.
        cache_share: share of the cache in which data is found again that was read before. Set.
        atomic_factor: how many times a plain store an atomic update costs. Set.
        program_share: how many times its share of the bandwidth a multiprocessor draws with one program. Fitted.
        scattered_factor: how many times its bytes a kernel moves whose neighbours in memory are on no axis. Set.
        look_back_seconds, look_back_programs: what programs that scan a line together wait for those before them, and
            how many of a multiprocessor do at once. Set.
        sort_operations: instructions per element and step of a sorting network. Set.
    """

    lane_share: float = 0.88
    access_operations: float = 4.0
    reduced_operations: float = 11.0
    scanned_operations: float = 80.0
    window_operations: float = 6.0
    transposed_operations: float = 16.0
    turn_seconds: float = 4e-7
    overlap_loss: float = 0.15
    cache_share: float = 0.5
    atomic_factor: float = 1.0
    program_share: float = 0.6
    scattered_factor: float = 2.0
    look_back_seconds: float = 1.7e-6
    look_back_programs: int = 4
    sort_operations: float = 6.0


ROOFLINE = RooflineCorrections()
