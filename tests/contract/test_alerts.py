"""Every alert fires on what it is there for; skipped where promtool is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.contract.distributions import ROOT

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
TTFT = "vllm:time_to_first_token_seconds_bucket"
CAUSES: dict[str, dict[str, str]] = {
    "InstanceGone": {'up{job="rorqual",instance="a"}': "0x30"},
    "NoDecode": {'rorqual_decode_max_running{instance="a"}': "0x30"},
    "FirstTokensLate": {
        f'{TTFT}{{le="5"}}': "0x30",
        f'{TTFT}{{le="10"}}': "0+60x30",
        f'{TTFT}{{le="+Inf"}}': "0+60x30",
    },
    "QueueGrows": {'rorqual_router_queued_jobs{instance="a"}': "0+50x30"},
    "RequestsFail": {
        'rorqual_http_responses_total{status="500"}': "0+60x30",
        'rorqual_http_responses_total{status="200"}': "0+60x30",
    },
    "KvPagesShort": {
        'rorqual_num_used_pages{instance="a"}': "99x30",
        'rorqual_num_total_pages{instance="a"}': "100x30",
    },
    "PrefixIndexNotLoaded": {'rorqual_kvmeta_loaded{instance="a"}': "0x30"},
    "QuotasNotEnforced": {'rorqual_quota_checks_skipped_total{instance="a"}': "0+60x30"},
}
"""Series by alert, one value a minute."""


def test_every_alert_has_its_cause_here() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == CAUSES.keys()


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: apt-get install prometheus")
def test_every_alert_fires_on_its_cause(tmp_path: Path) -> None:
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": text} for name, text in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "20m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for alert, series in CAUSES.items()
    ]
    suite = {"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": tests}
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump(suite))
    checked = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
