"""Load reports as Prometheus metrics."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.metrics import ServiceMetrics


def samples(metrics: ServiceMetrics) -> dict[str, float]:
    """Value by name and labels."""
    text = generate_latest(metrics.registry).decode()
    return {
        "".join([sample.name, *(f"[{value}]" for value in sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_of_every_detail_is_a_metric() -> None:
    details = [field for field in LoadReport.DESCRIPTOR.fields if field.containing_oneof]
    assert {"prefill", "decode", "kvmeta"} <= {field.name for field in details}
    for detail in details:
        metrics = ServiceMetrics(detail.name, "one", "1.0")
        getattr(metrics.last_report, detail.name).SetInParent()
        for field in detail.message_type.fields:
            if field.message_type is None and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                setattr(getattr(metrics.last_report, detail.name), field.name, 1)
        shown = samples(metrics)
        for field in detail.message_type.fields:
            if field.message_type is None and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                assert shown[f"rorqual_{detail.name}_{field.name}"] == 1.0


def test_only_what_a_service_says_is_shown_and_maps_have_a_label() -> None:
    metrics = ServiceMetrics("kvmeta", "kvmeta-1", "1.0")
    metrics.last_report.kvmeta.misses_total["namespace"] = 3
    metrics.last_report.experts.imbalance[7] = 1.25
    metrics.last_report.cancelled_total["queued"] = 4
    metrics.last_report.num_active_requests = 2
    shown = samples(metrics)
    assert shown["rorqual_kvmeta_misses_total[namespace]"] == 3.0
    assert shown["rorqual_experts_imbalance[7]"] == 1.25
    assert shown["rorqual_cancelled_total[queued]"] == 4.0
    assert shown["rorqual_num_active_requests"] == 2.0
    assert shown["process_resident_memory_bytes"] > 0
    assert not [name for name in shown if name.startswith("rorqual_decode")]
    assert "rorqual_seq" not in shown
