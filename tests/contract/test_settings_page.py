"""docs/settings.md lists every environment variable as the code reads it."""

from __future__ import annotations

from rorqual_runtime.settings import RuntimeSettings, variables_of

from scripts.settings_table import SERVICES, render, settings_of
from tests.contract import distributions


def test_the_page_is_what_the_script_writes() -> None:
    page = (distributions.ROOT / "docs/settings.md").read_text()
    assert page == render(), "python -m scripts.settings_table docs/settings.md"


def test_no_service_and_no_variable_is_left_out() -> None:
    assert set(SERVICES) == set(distributions.SERVICES)
    for settings in (RuntimeSettings, *map(settings_of, SERVICES)):
        missing = [name for name in variables_of(settings) if f"`{name}`" not in render()]
        assert not missing
