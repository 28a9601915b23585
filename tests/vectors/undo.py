from __future__ import annotations


def explain_prompt(case, parsed, encoding):
    return None
