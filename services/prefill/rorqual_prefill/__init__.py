"""Prompt computation and handover."""
