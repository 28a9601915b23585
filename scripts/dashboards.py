"""Writes the Grafana dashboards: panels as a table, so that one is one line.

.venv/bin/python scripts/dashboards.py deploy/grafana/dashboards
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RATE = "[$__rate_interval]"


def quantile(share: float, histogram: str) -> str:
    """Query of a quantile over all instances."""
    return f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{RATE})))"


def ratio(part: str, whole: str) -> str:
    """Query of one counter's growth over another's, over all instances."""
    return f"sum(rate({part}{RATE})) / sum(rate({whole}{RATE}))"


TTFT, GAP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"

Panel = tuple[str, str, dict[str, str]]
"""Title, unit, queries by legend."""

DASHBOARDS: dict[str, tuple[str, list[Panel]]] = {
    "fleet": (
        "Rorqual: fleet",
        [
            ("Requests under way", "short", {"running": "sum(vllm:num_requests_running)", "waiting": "sum(vllm:num_requests_waiting)"}),
            ("Answers by status", "reqps", {"{{status}}": f"sum by (status) (rate(rorqual_http_responses_total{RATE}))"}),
            ("Time to first token", "s", {"p50": quantile(0.5, TTFT), "p90": quantile(0.9, TTFT), "p99": quantile(0.99, TTFT)}),
            ("Time between chunks", "s", {"p50": quantile(0.5, GAP), "p90": quantile(0.9, GAP), "p99": quantile(0.99, GAP)}),
            ("Tokens", "short", {"prompt/s": f"sum(rate(vllm:prompt_tokens_total{RATE}))", "generated/s": f"sum(rate(vllm:generation_tokens_total{RATE}))"}),
            ("Prefill queue", "short", {"jobs": "max(rorqual_router_queued_jobs)", "pulled tokens": "sum(rorqual_prefill_queued_tokens)", "{{kind}}": "sum by (kind) (rorqual_router_waiting_by_bucket)"}),
            ("Prefill speed by instance", "short", {"{{instance}}": "rorqual_prefill_tokens_per_s"}),
            ("Decode step by instance", "s", {"{{instance}}": "rorqual_decode_step_s"}),
            ("Decode slots", "short", {"running": "sum(rorqual_decode_num_running)", "all": "sum(rorqual_decode_max_running)"}),
            ("KV pages in use", "percentunit", {"{{instance}}": "rorqual_num_used_pages / (rorqual_num_total_pages > 0)"}),
            ("Memory by instance", "bytes", {"{{instance}}": "process_resident_memory_bytes"}),
            ("CPU by instance", "short", {"{{instance}}": f"rate(process_cpu_seconds_total{RATE})"}),
        ],
    ),
    "cache": (
        "Rorqual: prefix cache",
        [
            ("Prompt tokens from the cache", "percentunit", {"hits": ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")}),
            ("Blocks found by kvmeta", "percentunit", {"found": ratio("rorqual_kvmeta_matched_blocks_total", "rorqual_kvmeta_asked_blocks_total")}),
            ("Misses by reason", "short", {"{{kind}}": f"sum by (kind) (rate(rorqual_kvmeta_misses_total{RATE}))"}),
            ("Match, mean", "s", {"router": ratio("rorqual_router_match_s_total", "rorqual_router_matches_total")}),
            ("Wait for a hit's blocks, mean", "s", {"prefill": ratio("rorqual_hit_path_hit_wait_s_total", "rorqual_hit_path_hits_total")}),
            ("Read from stores", "Bps", {"{{instance}}": f"rate(rorqual_hit_path_fetched_bytes_total{RATE})"}),
            ("Blocks", "short", {"fetched/s": f"sum(rate(rorqual_hit_path_fetched_blocks_total{RATE}))", "swapped in/s": f"sum(rate(rorqual_hit_path_swapped_blocks_total{RATE}))", "given up/s": f"sum(rate(rorqual_hit_path_late_blocks_total{RATE}))"}),
            ("Blocks known", "short", {"{{instance}}": "rorqual_kvmeta_num_blocks"}),
            ("Index memory", "bytes", {"{{instance}}": "rorqual_kvmeta_index_bytes"}),
            ("Registrations that wait for Redis", "short", {"{{instance}}": "rorqual_kvmeta_pending_blocks"}),
        ],
    ),
}  # fmt: skip


def dashboard(uid: str, title: str, panels: list[Panel]) -> dict[str, Any]:
    """Two panels a row, in order."""
    return {
        "uid": f"rorqual-{uid}",
        "title": title,
        "schemaVersion": 41,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": [_panel(number, *panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(queries.items())
        ],
    }


def render(name: str) -> str:
    """One dashboard as it is committed."""
    return json.dumps(dashboard(name, *DASHBOARDS[name]), indent=2) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (Path(sys.argv[1]) / f"{each}.json").write_text(render(each))
