"""Cases of a file with something changed in their bodies, and the reference's answer to that."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.reference import Reference

Case = dict[str, Any]
Path_ = tuple[str | int, ...]

_ODD = (None, True, 0, 1, -1, 1.0, 2.5, 1e30, 10**20, "", "x", [], {}, [None], "auto", ["x"])
_MAX_CHARS, _MAX_DEPTH = 20_000, 40


class RequestMutator:
    """Takes cases apart and puts their parts into others."""

    def __init__(self, files: list[Path], seed: int, reference: Reference) -> None:
        lines = (line for path in files for line in path.read_text("utf-8").split("\n") if line)
        cases = (json.loads(line) for line in lines if len(line) < _MAX_CHARS)
        self._cases = [case for case in cases if "body" in case and not case.get("options")]
        self._pick = random.Random(seed)
        self._reference = reference
        self._values: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for case in self._cases:
            for path, value in _walk(case["body"]):
                if path and isinstance(path[-1], str):
                    self._values[case["proto"], path[-1]].append(value)

    def case(self, number: int) -> Case:
        """The next case; one that the reference can't answer at all is left out."""
        while True:
            case = self._pick.choice(self._cases)
            proto, body = case["proto"], copy.deepcopy(case["body"])
            for _ in range(self._pick.choice((1, 1, 1, 2))):
                self._change(proto, body)
            try:
                expect = self._reference.answer(proto, body)
            except ValueError:  # it could not say which context it needs
                continue
            group = f"{case['group']}, changed"
            found = {"id": f"mut-{number:05d}", "proto": proto, "group": group, "body": body}
            return {**found, "expect": expect}

    def _change(self, proto: str, body: Any) -> None:
        pick = self._pick
        paths = [path for path, _ in _walk(body) if path]
        if not paths:
            return
        *parents, last = pick.choice(paths)
        place = body
        for step in parents:
            place = place[step]
        chance = pick.random()
        if chance < 0.2:
            del place[last]
        elif chance < 0.5:
            place[last] = pick.choice(_ODD)
        elif isinstance(last, int):
            place.insert(last, copy.deepcopy(place[last]))
        else:
            key = last if chance < 0.9 else pick.choice([k for p, k in self._values if p == proto])
            place[key] = copy.deepcopy(pick.choice(self._values.get((proto, key), _ODD)))


def _walk(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    yield path, value
    if len(path) > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))
