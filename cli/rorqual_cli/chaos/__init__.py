"""Faults on purpose: a fleet under load with known right answers, and what it makes of them."""
