"""Logged decisions can be read back as JSON."""

import json
import logging

from rorqual_policy import PlacementParams, PlacementRequest, choose_decode
from rorqual_runtime.decision_log import log_decision


def test_input_and_decision_survive_json(caplog):
    request = PlacementRequest("r", 1, 1, frozenset({"b", "a"}))
    with caplog.at_level(logging.DEBUG, logger="test"):
        given = ([], request, PlacementParams())
        log_decision(logging.getLogger("test"), "placement", given, choose_decode([], request))
    (record,) = caplog.records
    line = json.loads(json.dumps({"input": record.input, "decision": record.decision}))
    assert line["input"][1]["excluded_ids"] == ["a", "b"]
    assert line["decision"]["outcome"] == "no_instance"


def test_nothing_is_logged_above_debug(caplog):
    with caplog.at_level(logging.INFO, logger="test"):
        log_decision(logging.getLogger("test"), "placement", object(), object())
    assert caplog.records == []
