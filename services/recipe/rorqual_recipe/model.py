"""The served model as recipe sees it: names, limits, tokenizer and prompt encoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rorqual_recipe.conversation import Conversation
from rorqual_recipe.encodings import make_encoding
from rorqual_recipe.encodings.base import PromptEncoding
from rorqual_recipe.model_files import AddedToken, BadModelDirectory, ModelFiles, read_model_files
from rorqual_recipe.raw_text import RawText
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.cache import TokenCache
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds
from rorqual_recipe.tokens.layers import CachingEncoder
from rorqual_recipe.tokens.segments import encode_segments
from rorqual_recipe.tokens.select import make_text_encoder
from rorqual_recipe.tokens.vocabulary import UnsupportedDecoder, Vocabulary, make_vocabulary

DEFAULT_IMAGE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling the model's makers recommend; used where the client says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything needed to encode prompts for one model and to read its tokens."""

    model_id: str
    fingerprint: str
    created_unix_s: int
    max_context_tokens: int
    has_vision: bool
    defaults: GenerationDefaults
    encoding: PromptEncoding
    encoder: CachingEncoder
    token_cache: TokenCache
    vocabulary: Vocabulary
    raw_text: RawText
    max_image_tokens: int = 0
    """Of one image; 0 for a model that sees none."""

    @property
    def takes_images(self) -> bool:
        """True when requests may hold images, seen or replaced by a text."""
        return self.has_vision or self.encoding.replaces_images

    def encode(self, conversation: Conversation) -> TokenIds:
        """Token ids (int32) of the prompt. Raises: RequestRefused."""
        return encode_segments(self.encoding.render(conversation).segments, self.encoder)


def load_served_model(settings: RecipeSettings) -> ServedModel:
    """Read the model directory; takes about a second.

    Raises: BadModelDirectory, UnknownEncoding.
    """
    files = read_model_files(settings.model_dir)
    cache = TokenCache(settings.token_cache_bytes)
    encoder = make_text_encoder(files.tokenizer, prefer_fast=settings.fast_tokenizer, cache=cache)
    encoding = make_encoding(settings.prompt_encoding, files)
    _refuse_leaky_tokenizer(files, encoding.own_tokens, encoder)
    return ServedModel(
        model_id=str(files.manifest.get("id") or files.directory.resolve().name),
        fingerprint=str(files.manifest.get("fingerprint", "")),
        created_unix_s=_created_unix_s(files),
        max_context_tokens=_max_context_tokens(files),
        has_vision="vision_config" in files.config,
        defaults=_generation_defaults(files.generation_config),
        encoding=encoding,
        encoder=encoder,
        token_cache=cache,
        vocabulary=_vocabulary(files),
        raw_text=RawText.from_model(files),
        max_image_tokens=_max_image_tokens(files),
    )


def _refuse_leaky_tokenizer(
    files: ModelFiles, own_tokens: frozenset[str], encoder: TextEncoder
) -> None:
    """A model's own vocabulary must not turn a special token's spelling into its id."""
    special = (t for t in files.added_tokens if t.special or t.content in own_tokens)
    leaky = [token for token in special if _leaks(token, encoder)]
    if leaky:
        raise BadModelDirectory(
            files.directory / "tokenizer.json",
            f"plain text can become the special token {leaky[0].content!r}",
        )


def _leaks(token: AddedToken, encoder: TextEncoder) -> bool:
    surrounded = (token.content, f"x{token.content}y", f" {token.content} ")
    return any(token.token_id in ids for ids in encoder.encode(surrounded))


def _vocabulary(files: ModelFiles) -> Vocabulary:
    try:
        return make_vocabulary(files.tokenizer, files.added_tokens)
    except UnsupportedDecoder as err:
        raise BadModelDirectory(files.directory / "tokenizer.json", str(err)) from err


def _max_context_tokens(files: ModelFiles) -> int:
    config = files.config.get("text_config", files.config)
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int) or limit < 1:
        raise BadModelDirectory(files.directory / "config.json", "no max_position_embeddings in it")
    return limit


def _max_image_tokens(files: ModelFiles) -> int:
    vision = files.config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    limit = vision.get("max_image_tokens", vision.get("max_tokens"))
    return limit if isinstance(limit, int) and limit > 0 else DEFAULT_IMAGE_TOKENS


def _created_unix_s(files: ModelFiles) -> int:
    created = files.manifest.get("created_unix_s")
    return int(created or (files.directory / "config.json").stat().st_mtime)


def _generation_defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    plain = GenerationDefaults()
    if config.get("do_sample") is False:
        return plain
    return GenerationDefaults(
        temperature=float(config.get("temperature") or plain.temperature),
        top_p=float(config.get("top_p") or plain.top_p),
        top_k=int(config.get("top_k") or plain.top_k),
        min_p=float(config.get("min_p") or plain.min_p),
    )
