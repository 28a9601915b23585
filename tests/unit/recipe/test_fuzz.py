"""A few of the bodies that `make fuzz` sends: each is answered or refused, none escapes."""

from __future__ import annotations

import pytest
from rorqual_recipe.model import ServedModel

from tests.fuzz.bodies import ENDPOINTS
from tests.fuzz.run import Target, fuzz


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_mutated_bodies_are_answered_or_refused(model: ServedModel, endpoint: str) -> None:
    found = fuzz(Target(model), endpoint, num_bodies=150, seed=7)
    assert {200, 400} <= set(found.statuses) <= {200, 400, 404}
