"""What a conversation asks of a DeepSeek model, resolved with the model's profile."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rorqual_recipe.conversation import (
    Conversation,
    Effort,
    SamplingOptions,
    Thinking,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from rorqual_recipe.encodings.tool_lines import by_printed_name
from rorqual_recipe.problems import Problem, RequestRefused
from rorqual_recipe.profile import (
    EffortTexts,
    NumberRule,
    Pieces,
    PromptProfile,
    SamplingPolicy,
    SamplingRules,
)


@dataclass(frozen=True, slots=True)
class Mode:
    """One conversation's settings.

    declared: tools of the section at the head. callable_tools: those, and tools declared later,
    by printed name. effort_line: printed at the head, may be empty.
    """

    thinks: bool
    effort: Effort
    effort_line: Pieces
    declared: dict[str, Tool]
    callable_tools: dict[str, Tool]
    has_tools: bool
    is_call_required: bool
    warnings: list[str] = field(default_factory=list)


def resolve_mode(
    conversation: Conversation, profile: PromptProfile, *, joiner: str, defers: bool
) -> Mode:
    """defers: tools may be left out of the head and be declared later."""
    thinks = thinking_mode(conversation.thinking, profile)
    effort = conversation.thinking.effort or profile.effort.default
    warnings: list[str] = []
    found = [tool for message in conversation.messages for tool in message.declared_tools]
    tools = _chosen(conversation.tools, conversation.tool_choice, joiner)
    later = _chosen(found, conversation.tool_choice, joiner)
    if defers:
        head = [tool for tool in tools if not tool.deferred]
    else:
        head = [*tools, *(tool for tool in later if tool not in conversation.tools)]
    every = by_printed_name([*tools, *later], joiner)
    required = conversation.tool_choice.mode is ToolChoiceMode.REQUIRED and bool(every)
    return Mode(
        thinks=thinks,
        effort=effort,
        effort_line=_effort_line(conversation.thinking, profile.effort, warnings) if thinks else [],
        declared=by_printed_name(head, joiner),
        callable_tools=every,
        has_tools=bool(tools or later),
        is_call_required=required,
        warnings=warnings,
    )


def thinking_mode(thinking: Thinking, profile: PromptProfile) -> bool:
    """Whether the answer is thought about first: a wish, an effort given, or the default."""
    if thinking.enabled is not None:
        return thinking.enabled
    asks = thinking.effort is not None or thinking.effort_percent is not None
    return asks or profile.thinks_by_default


def _chosen(tools: Sequence[Tool], choice: ToolChoice, joiner: str) -> Sequence[Tool]:
    """Tools that the choice leaves; a call that must be of one tool leaves that one."""
    if choice.mode is ToolChoiceMode.NONE:
        return ()
    if choice.mode is ToolChoiceMode.REQUIRED and choice.names:
        wanted = {name.replace("::", joiner) for name in choice.names} | set(choice.names)
        named = by_printed_name(tools, joiner)
        return [tool for name, tool in named.items() if name in wanted]
    return tools


def _effort_line(thinking: Thinking, texts: EffortTexts, warnings: list[str]) -> Pieces:
    percent = thinking.effort_percent
    if percent is None:
        return texts.lines[thinking.effort or texts.default].text
    if texts.number is not None:
        return [*texts.number.before, str(percent), *texts.number.after]
    nearest = min(texts.lines, key=lambda effort: abs(texts.lines[effort].percent - percent))
    warnings.append(f"thinking: an effort of {percent} was taken as {nearest.value}")
    return texts.lines[nearest].text


def sampling_rules(mode: Mode, policy: SamplingPolicy) -> SamplingRules:
    """The policy for a conversation."""
    if not mode.thinks:
        return policy.plain
    return policy.thinking_with_tools if mode.has_tools else policy.thinking


def apply_rules(
    sampling: SamplingOptions, rules: SamplingRules
) -> tuple[dict[str, float | int | None], list[str]]:
    """Fields of SamplingOptions that the policy changes, and what the caller should know.

    Raises: RequestRefused when more tokens are wanted than the model's makers allow.
    """
    warnings: list[str] = []
    changed: dict[str, float | int | None] = {
        "temperature": _ruled("temperature", sampling.temperature, rules.temperature, warnings),
        "top_p": _ruled("top_p", sampling.top_p, rules.top_p, warnings),
    }
    bound, wanted = rules.max_tokens_bound, sampling.max_tokens
    if bound is not None and wanted is not None and wanted > bound:
        if not sampling.lowers_max_tokens:
            message = f"must be at most {bound} for this model"
            raise RequestRefused([Problem(sampling.max_tokens_param, message)])
        warnings.append(f"{sampling.max_tokens_param}: lowered to {bound}, the model's bound")
        changed["max_tokens"] = bound
    return changed, warnings


def _ruled(name: str, wish: float | None, rule: NumberRule, warnings: list[str]) -> float | None:
    value = rule.apply(wish)
    if wish is not None and value != wish:
        warnings.append(f"{name}: {value} is used, the model's own policy for this kind of request")
    return value
