"""What sets one DeepSeek version's prompt apart from another's."""

from dataclasses import dataclass

_TOKENS = ("bos", "eos", "user", "assistant", "reminder", "think_open", "think_close", "dsml")


@dataclass(frozen=True, slots=True)
class Layout:
    """Facts of one version.

    tokens: special tokens its prompts are made of. hoists_system: system messages stand together
    at the head; else each in its place. block, gap: the spelling of the tags of tool calls.
    empty_call: between the tags of a call without arguments. joins_users: a run of user messages
    is one text, its empty messages left out. defers_tools: tools may be declared between turns.
    short_exponents: how small numbers in schemas are spelled.
    """

    name: str
    tokens: tuple[str, ...]
    tool_format: str
    hoists_system: bool
    developer_is_system: bool
    joins_users: bool
    defers_tools: bool
    namespace_joiner: str
    describes_namespace: bool
    block: str
    gap: str
    empty_call: str
    short_exponents: bool


V4 = Layout(
    name="deepseek-v4",
    tokens=_TOKENS,
    tool_format="dsml-v4",
    hoists_system=True,
    developer_is_system=False,
    joins_users=True,
    defers_tools=False,
    namespace_joiner="__",
    describes_namespace=False,
    block="tool_calls",
    gap="",
    empty_call="",
    short_exponents=True,
)
V41 = Layout(
    name="deepseek-v4.1",
    tokens=(*_TOKENS, "system", "image"),
    tool_format="dsml-v4.1",
    hoists_system=False,
    developer_is_system=True,
    joins_users=False,
    defers_tools=True,
    namespace_joiner="::",
    describes_namespace=True,
    block=" calls",
    gap=" ",
    empty_call="\n",
    short_exponents=False,
)
