"""What an operator can set of a prefill instance."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from rorqual_decode.settings import DecodeSettings
from rorqual_policy.buckets import Bucket
from rorqual_prefill.settings import PrefillSettings
from rorqual_runtime.settings import describe_settings_error


def test_buckets_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PrefillSettings().buckets == tuple(Bucket)
    monkeypatch.setenv("RORQUAL_PREFILL_BUCKETS", "lt16k, ge256k")
    assert PrefillSettings().buckets == (Bucket.LT16K, Bucket.GE256K)


@pytest.mark.parametrize("value", ["", "lt17k", '["lt16k"]'])
def test_unknown_buckets_stop_the_start_by_their_variable(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("RORQUAL_PREFILL_BUCKETS", value)
    with pytest.raises(ValidationError) as caught:
        PrefillSettings()
    assert "RORQUAL_PREFILL_BUCKETS: " in describe_settings_error(caught.value)


@pytest.mark.parametrize("kind", [PrefillSettings, DecodeSettings])
def test_one_variable_keeps_few_bits_everywhere(
    monkeypatch: pytest.MonkeyPatch, kind: type[PrefillSettings | DecodeSettings]
) -> None:
    assert not kind().keeps_quantized
    monkeypatch.setenv("RORQUAL_KEEPS_QUANTIZED", "1")
    assert kind().keeps_quantized
