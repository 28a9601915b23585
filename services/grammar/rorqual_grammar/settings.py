"""Settings of the grammar service (`RORQUAL_GRAMMAR_*`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class GrammarSettings(BaseSettings):
    """Limits that keep a hostile constraint from costing more than itself."""

    model_config = SettingsConfigDict(
        env_prefix="RORQUAL_GRAMMAR_", frozen=True, extra="ignore", populate_by_name=True
    )

    model_dir: Path = Field(
        Path(".rorqual/models/smollm2-135m-instruct"),
        validation_alias="RORQUAL_MODEL_DIR",
        description="model directory whose tokenizer the grammars are compiled for",
    )
    compile_timeout_s: float = Field(5.0, gt=0, description="wall time one compilation may take")
    compile_memory_bytes: int = Field(
        1 << 30, gt=0, description="memory one compilation may take on top of the vocabulary"
    )
    max_source_bytes: int = Field(262_144, gt=0, description="longest schema, pattern or grammar")
    max_compiled_bytes: int = Field(16 << 20, gt=0, description="largest serialised grammar")
    max_concurrent: int = Field(2, gt=0, description="compilations that run at the same time")
    max_waiting: int = Field(64, gt=0, description="compilations that may wait for their turn")
    cache_bytes: int = Field(64 << 20, ge=0, description="compiled grammars kept in memory")
    lease_s: float = Field(
        900.0, gt=0, description="how long a grammar stays readable after it was asked for"
    )
