"""What the way of stored blocks into pages has done and taken, for load reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HitCounts:
    """Since start. Named as on the wire, where each is explained."""

    prompts_total: int = 0
    hits_total: int = 0
    hit_blocks_total: int = 0
    hit_wait_s_total: float = 0.0
    fetched_blocks_total: int = 0
    fetched_bytes_total: int = 0
    fetch_s_total: float = 0.0
    host_blocks_total: int = 0
    left_out_blocks_total: int = 0
    late_blocks_total: int = 0
    swapped_blocks_total: int = 0
    swap_s_total: float = 0.0
    relayed_blocks_total: int = 0
    corrupt_blocks_total: int = 0
    missing_blocks_total: int = 0
