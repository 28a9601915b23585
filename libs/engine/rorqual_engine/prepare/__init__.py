"""Model preparation: GGUF in, Hugging Face directory out."""

from rorqual_engine.prepare.directory import DEFAULT_MODEL, DEFAULT_ROOT, prepare_model

__all__ = ["DEFAULT_MODEL", "DEFAULT_ROOT", "prepare_model"]
