"""Prompt encodings `deepseek-v4` and `deepseek-v4.1`: the turns are code, the sentences data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rorqual_recipe.conversation import Conversation, ImagePart, SamplingOptions
from rorqual_recipe.encodings.base import NO_TOOL_FORMAT, RenderedPrompt, Special
from rorqual_recipe.encodings.deepseek_layout import Layout
from rorqual_recipe.encodings.deepseek_mode import (
    Mode,
    apply_rules,
    resolve_mode,
    sampling_rules,
)
from rorqual_recipe.encodings.deepseek_turns import TurnWriter
from rorqual_recipe.model_files import BadModelDirectory, ModelFiles
from rorqual_recipe.profile import PROFILE_FILE, PromptProfile


class DeepSeekEncoding:
    """One version's prompt for one checkpoint.

    tokens: the special tokens by their names in the profile.
    """

    def __init__(self, layout: Layout, profile: PromptProfile, tokens: dict[str, Special]) -> None:
        self._layout = layout
        self._profile = profile
        self._tokens = tokens
        self.replaces_images = profile.image_text is not None
        self.own_tokens = frozenset(token.content for token in tokens.values())

    @classmethod
    def from_model(
        cls, layout: Layout, files: ModelFiles, profile: PromptProfile | None
    ) -> "DeepSeekEncoding":
        """The encoding of a checkpoint. Raises: BadModelDirectory."""
        path = files.directory / PROFILE_FILE
        if profile is None:
            raise BadModelDirectory(path, f"missing; the encoding {layout.name} needs it")
        missing = [name for name in layout.tokens if name not in profile.tokens]
        if missing:
            raise BadModelDirectory(path, f"tokens: missing {', '.join(missing)}")
        return cls(layout, profile, _find_tokens(layout, profile, files))

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """See PromptEncoding.render."""
        mode = self._mode(conversation)
        turns = TurnWriter(self._layout, self._profile, self._tokens, conversation, mode)
        stage = turns.write()
        rules = sampling_rules(mode, self._profile.sampling)
        by_effort = rules.default_max_tokens_by_effort
        return RenderedPrompt(
            segments=turns.out.segments,
            stage=stage,
            thinks=mode.thinks,
            starts_in_tool_calls=turns.starts_in_tool_calls,
            tool_format=self._layout.tool_format if mode.callable_tools else NO_TOOL_FORMAT,
            tools=mode.callable_tools,
            reasoning_marks=self._reasoning_marks(),
            images=tuple(turns.out.images),
            default_max_tokens=by_effort.get(mode.effort, rules.default_max_tokens),
            warnings=(*mode.warnings, *self._image_warnings(conversation)),
            dsml_mark=self._profile.tokens["dsml"],
        )

    def effective_sampling(
        self, conversation: Conversation, sampling: SamplingOptions
    ) -> tuple[SamplingOptions, tuple[str, ...]]:
        """See PromptEncoding.effective_sampling."""
        rules = sampling_rules(self._mode(conversation), self._profile.sampling)
        changed, warnings = apply_rules(sampling, rules)
        fields: dict[str, Any] = dict(changed)
        return replace(sampling, **fields), tuple(warnings)

    def _mode(self, conversation: Conversation) -> Mode:
        layout = self._layout
        return resolve_mode(
            conversation, self._profile, joiner=layout.namespace_joiner, defers=layout.defers_tools
        )

    def _image_warnings(self, conversation: Conversation) -> Iterator[str]:
        if not self.replaces_images:
            return
        for message in conversation.messages:
            for part in message.parts:
                if isinstance(part, ImagePart):
                    text = self._profile.image_text
                    yield f"{part.param}: the model sees no images, {text!r} stands in its place"

    def _reasoning_marks(self) -> tuple[str, str]:
        return self._tokens["think_open"].content, self._tokens["think_close"].content


def _find_tokens(layout: Layout, profile: PromptProfile, files: ModelFiles) -> dict[str, Special]:
    ids = {token.content: token.token_id for token in files.added_tokens}
    spellings = {name: profile.tokens[name] for name in layout.tokens}  # type: ignore[index]
    absent = [spelling for spelling in spellings.values() if spelling not in ids]
    if absent:
        reason = f"the tokenizer has no special token {', '.join(map(repr, absent))}"
        raise BadModelDirectory(files.directory / PROFILE_FILE, reason)
    return {name: Special(ids[text], text) for name, text in spellings.items()}
