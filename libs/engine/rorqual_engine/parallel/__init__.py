"""Experts of one model spread over several processes. See README.md."""

from rorqual_engine.parallel.exchange import Arrived, ExpertExchange, GroupLost
from rorqual_engine.parallel.group import ExpertGroup
from rorqual_engine.parallel.placement import BadPlacement, ExpertPlacement
from rorqual_engine.parallel.processes import ProcessExchange

__all__ = [
    "Arrived",
    "BadPlacement",
    "ExpertExchange",
    "ExpertGroup",
    "ExpertPlacement",
    "GroupLost",
    "ProcessExchange",
]
