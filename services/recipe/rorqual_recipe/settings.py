"""Settings of the recipe service, read once at start."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rorqual_recipe.sealing import parse_sealing_keys


class RecipeSettings(BaseSettings):
    """What an operator can change; a wrong value stops the start."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_RECIPE_", frozen=True, populate_by_name=True, extra="ignore"
    )

    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="directory of the served model",
    )
    prompt_encoding: str = Field(
        "auto", description="name of the prompt encoding; auto = the profile's, or chat-template"
    )
    fast_tokenizer: bool = Field(True, description="use fastokens where it proves exact at load")
    token_cache_bytes: int = Field(
        128 << 20,
        ge=0,
        description="texts kept with their ids, so that a session's next turn is short",
    )
    max_cache_ttl_s: int = Field(
        30 * 86_400,
        ge=1,
        le=10 * 365 * 86_400,
        description="largest cache_ttl of a request, in seconds",
    )
    default_max_tokens: int = Field(
        2048, gt=0, description="answer length when the client names none"
    )
    max_choices: int = Field(8, ge=1, description="largest n of one request")
    stream_ttl_s: float = Field(
        630.0, gt=0, description="longest life of a stream, whatever its deadline"
    )
    encode_threads: int = Field(2, ge=1, description="threads for prompts too big for the loop")
    inline_encode_bytes: int = Field(
        16384, ge=0, description="bodies up to this size are encoded on the event loop"
    )
    max_waiting_encodes: int = Field(
        256, ge=1, description="big prompts waiting for a thread before new ones get 503"
    )
    document_threads: int = Field(2, ge=1, description="threads for requests that bring PDFs")
    max_waiting_documents: int = Field(
        32, ge=1, description="requests with PDFs waiting for a thread before new ones get 503"
    )
    stall_probe_s: float = Field(
        5.0, gt=0, description="silence after which decode is asked for what was missed"
    )
    resend_timeout_s: float = Field(2.0, gt=0, description="one attempt to fetch missed tokens")
    resend_attempts: int = Field(3, ge=1, description="attempts before the stream fails")
    max_event_log_bytes: int = Field(
        256 << 10, gt=0, description="events kept per stream for a gateway that missed some"
    )
    ended_stream_s: float = Field(
        90.0,
        ge=0,
        description="time for which an ended stream's events are kept: an outage, and more",
    )
    max_ended_streams: int = Field(1024, ge=0, description="ended streams kept at once")
    listener_patience_s: float = Field(
        30.0, gt=0, description="time an answer goes on with nobody listening, before it is ended"
    )
    max_early_deltas: int = Field(
        64, ge=1, description="deltas kept per choice while a gap before them is filled"
    )
    response_ttl_s: float = Field(
        86400.0, gt=0, description="how long a stored response can be continued or read"
    )
    max_stored_response_bytes: int = Field(
        8 << 20, gt=0, description="largest stored response, its whole conversation included"
    )
    store_timeout_s: float = Field(0.5, gt=0, description="one call to the response store")
    store_connections: int = Field(16, ge=1, description="connections to the response store")
    sealing_key: SecretStr = Field(
        SecretStr(""),
        description="keys of encrypted reasoning, comma separated, the first one seals; empty = "
        "one that the instances share through the response store",
    )
    seal_ttl_s: float = Field(
        30 * 86400.0, gt=0, description="how long encrypted reasoning can be sent back"
    )

    max_images: int = Field(
        600, ge=0, description="images of one request, counted once for each of its choices"
    )
    max_images_at_once: int = Field(16, ge=1, description="images of a request asked for at once")
    image_timeout_s: float = Field(
        20.0, gt=0, description="longest wait for one image to be fetched and read, at one instance"
    )

    drop_server_tools: bool = Field(
        False, description="Messages: leave web search and its history out instead of refusing it"
    )

    @field_validator("sealing_key")
    @classmethod
    def _strong_keys(cls, value: SecretStr) -> SecretStr:
        parse_sealing_keys(value.get_secret_value())
        return value
