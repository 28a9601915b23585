"""Settings: frozen, read from the environment, wrong values named by their variable."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from rorqual_decode.settings import DecodeSettings
from rorqual_gateway.settings import GatewaySettings
from rorqual_recipe.settings import RecipeSettings
from rorqual_runtime.settings import RuntimeSettings, describe_settings_error


def test_environment_overrides_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RORQUAL_HOME", "/tmp/elsewhere")
    monkeypatch.setenv("RORQUAL_NATS_URL", "nats://a:1, nats://b:2")
    settings = RuntimeSettings()
    assert settings.home == Path("/tmp/elsewhere")
    assert settings.nats_servers == ["nats://a:1", "nats://b:2"]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        RuntimeSettings().drain_s = 1.0  # type: ignore[misc]


def test_the_host_name_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RORQUAL_ADVERTISE_HOST", "hostname")
    assert RuntimeSettings().advertise_host == socket.gethostname()


def test_what_may_hold_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hush" * 8
    monkeypatch.setenv("RORQUAL_NATS_URL", f"nats://user:{secret}@host:4222")
    monkeypatch.setenv("RORQUAL_REDIS_URL", f"redis://user:{secret}@host:6379/0")
    monkeypatch.setenv("RORQUAL_DECODE_STORE_URL", f"redis://user:{secret}@host:6379/1")
    monkeypatch.setenv("RORQUAL_GATEWAY_API_KEYS", f"name:{secret}")
    monkeypatch.setenv("RORQUAL_RECIPE_SEALING_KEY", secret)
    for settings in (RuntimeSettings(), GatewaySettings(), RecipeSettings(), DecodeSettings()):
        assert secret in str(_plain(settings)) and secret not in repr(settings) + str(settings)


def _plain(settings: BaseSettings) -> dict[str, object]:
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in settings
    }


def test_processes_of_one_kernel_share_the_host_id() -> None:
    assert RuntimeSettings().host_id == RuntimeSettings().host_id != ""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RORQUAL_SHM_BYTES", "lots"),
        ("RORQUAL_TRACE_SAMPLE_RATIO", "1.5"),
        ("RORQUAL_INSTANCE_ID", "has.dots"),
        ("RORQUAL_LOG_LEVEL", "loud"),
        ("RORQUAL_NATS_URL", "127.0.0.1:4222"),
        ("RORQUAL_DRAIN_S", "-1"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        RuntimeSettings()
    line = describe_settings_error(caught.value)
    assert variable in line
    assert "\n" not in line


def test_the_variable_of_a_service_and_of_an_alias_is_named() -> None:
    class ProbeSettings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="RORQUAL_PROBE_", frozen=True)
        size: int = Field(description="needed")
        model_dir: Path = Field(validation_alias="RORQUAL_MODEL_DIR")

    with pytest.raises(ValidationError) as caught:
        ProbeSettings()
    line = describe_settings_error(caught.value)
    assert "RORQUAL_PROBE_SIZE: " in line
    assert "RORQUAL_MODEL_DIR: " in line
