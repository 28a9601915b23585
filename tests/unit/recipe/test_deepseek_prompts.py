"""Prompts of the DeepSeek encodings, with a profile whose sentences are our own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    ImagePart,
    Message,
    OutputConstraint,
    Role,
    SamplingOptions,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    ToolKind,
)
from rorqual_recipe.encodings.base import AnswerStage, Image, RenderedPrompt, Special
from rorqual_recipe.encodings.deepseek import DeepSeekEncoding
from rorqual_recipe.encodings.deepseek_layout import V4, V41
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.profile import PromptProfile, parse_profile

from tests.support.dsml_model_dir import TOKENS, make_profile

SPECIALS = {name: Special(i, text) for i, (name, text) in enumerate(TOKENS.items())}
SHORT = {text: f"[{name}]" for name, text in TOKENS.items()}
OFF, ON = Thinking(False), Thinking(True)
REQUIRED = ToolChoice(ToolChoiceMode.REQUIRED)
RUN = Tool("run", "Runs", {"type": "object"})
RUN_LINE = '{"name": "run", "description": "Runs", "parameters": {"type": "object"}}'


def profile_of(encoding: str, **fields: object) -> PromptProfile:
    content = {**make_profile(encoding), **fields}
    return parse_profile(json.dumps(content).encode(), Path("profile"))


def v4(**fields: object) -> DeepSeekEncoding:
    return DeepSeekEncoding(V4, profile_of("deepseek-v4", **fields), SPECIALS)


def v41(**fields: object) -> DeepSeekEncoding:
    return DeepSeekEncoding(V41, profile_of("deepseek-v4.1", image_text=None, **fields), SPECIALS)


def said(role: Role, text: str = "", **fields: object) -> Message:
    return Message(role, (TextPart(text),), **fields)


def user(text: str) -> Message:
    return said(Role.USER, text)


def talk(*messages: Message, thinking: Thinking = OFF, **fields: object) -> Conversation:
    return Conversation(messages, thinking=thinking, **fields)


def spelled(prompt: RenderedPrompt) -> str:
    """The prompt with special tokens by their names in brackets."""
    return "".join(s if isinstance(s, str) else SHORT[s.content] for s in prompt.segments)


def turns(prompt: RenderedPrompt) -> str:
    """What follows the head."""
    text = spelled(prompt)
    return text[text.index("[user]") :]


def test_system_messages_stand_at_the_head_or_in_their_place() -> None:
    messages = (
        said(Role.SYSTEM, "one"),
        user("u"),
        said(Role.SYSTEM),
        said(Role.SYSTEM, "two"),
        user("v"),
    )
    end = "[assistant][think_close]"
    assert spelled(v4().render(talk(*messages))) == f"[bos]one\n\ntwo[user]u\n\nv{end}"
    in_place = f"[bos][system]one[user]u[system]two[user]v{end}"
    assert spelled(v41().render(talk(*messages))) == in_place


def test_a_late_system_message_can_stay_on_v4() -> None:
    late = replace(said(Role.SYSTEM, "note"), stays_in_place=True)
    encoding = v4(late_system=["<note>", "</note>"])
    prompt = encoding.render(talk(user("u"), late, user("v")))
    assert spelled(prompt) == "[bos][user]u\n\n<note>note</note>\n\nv[assistant][think_close]"


def test_developers_are_system_or_user() -> None:
    messages = (said(Role.DEVELOPER, "d"), user("u"))
    assert spelled(v41().render(talk(*messages))).startswith("[bos][system]d[user]u")
    assert spelled(v4().render(talk(*messages))).startswith("[bos][user]d\n\nu")


@pytest.mark.parametrize(
    ("thinking", "line"),
    [
        (ON, "Effort 75.\n"),
        (Thinking(effort=Effort.LOW), "Effort 20.\n"),
        (Thinking(effort=Effort.MAX), "Effort 100.\n"),
        (Thinking(effort_percent=33), "Effort 33.\n"),
        (Thinking(), "Effort 75.\n"),
        (Thinking(False, Effort.MAX), ""),
    ],
)
def test_the_effort_stands_first_while_thinking(thinking: Thinking, line: str) -> None:
    prompt = v41().render(talk(user("u"), thinking=thinking))
    head = f"[bos][system]{line}" if line else "[bos]"
    mark = "[think_open]" if line else "[think_close]"
    assert spelled(prompt) == f"{head}[user]u[assistant]{mark}"
    assert prompt.thinks == bool(line)
    assert prompt.stage is (AnswerStage.REASONING if line else AnswerStage.CONTENT)


def test_an_effort_in_numbers_is_the_nearest_word_where_there_are_no_numbers() -> None:
    effort = make_profile("deepseek-v4")["effort"]
    encoding = v4(effort={**effort, "number": None})
    prompt = encoding.render(talk(user("u"), thinking=Thinking(effort_percent=24)))
    assert spelled(prompt).startswith("[bos]Effort 20.\n")
    assert "effort of 24" in prompt.warnings[0]


def test_a_model_can_be_one_that_does_not_think_unasked() -> None:
    encoding = v41(thinks_by_default=False)
    assert not encoding.render(talk(user("u"), thinking=Thinking())).thinks
    assert encoding.render(talk(user("u"), thinking=Thinking(effort=Effort.LOW))).thinks


def test_tools_and_shape_follow_the_system_text() -> None:
    shape = OutputConstraint(ConstraintKind.JSON_SCHEMA, '{"type":"object","x":1e-7}')
    talked = talk(said(Role.SYSTEM, "S"), user("u"), tools=(RUN,), response_format=shape)
    section = f"\n\nTools, called inside <[dsml]>:\n{RUN_LINE}\nNo others.\n"
    schema = '\n\nAnswer in this shape:\n{"type": "object", "x": %s}'
    assert spelled(v41().render(talked)).startswith(
        f"[bos][system]S{section}{schema % '1e-07'}[user]"
    )
    assert spelled(v4().render(talked)).startswith(f"[bos]S{section}{schema % '1e-7'}[user]")


def test_calls_and_results_in_the_markup_of_each_version() -> None:
    calls = (ToolCall("b", "run", '{"q": "x<y", "n": 1.50}'), ToolCall("a", "run", "{}"))
    messages = (
        user("u"),
        said(Role.ASSISTANT, "c", tool_calls=calls, reasoning="r"),
        said(Role.TOOL, "for a", tool_call_id="a"),
        said(Role.TOOL, "for b", tool_call_id="b"),
        user("more"),
    )
    v41_block = (
        '\n\n<[dsml] calls>\n<[dsml] invoke name="run">\n'
        '<[dsml] parameter name="q" string="true">x<y</[dsml] parameter>\n'
        '<[dsml] parameter name="n" string="false">1.50</[dsml] parameter>\n'
        '</[dsml] invoke>\n<[dsml] invoke name="run">\n\n</[dsml] invoke>\n</[dsml] calls>'
    )
    v4_block = v41_block.replace("[dsml] calls", "[dsml]tool_calls").replace("[dsml] ", "[dsml]")
    results = "<tool_result>for b</tool_result>\n\n<tool_result>for a</tool_result>\n\nmore"
    for encoding, block in ((v41(), v41_block), (v4(), v4_block.replace("\n\n</[d", "\n</[d"))):
        prompt = encoding.render(talk(*messages, tools=(RUN,), thinking=ON))
        assert turns(prompt) == (
            f"[user]u[assistant][think_open]r[think_close]c{block}[eos]"
            f"[user]{results}[assistant][think_open]"
        )


def test_a_custom_call_is_one_parameter_as_it_is() -> None:
    call = ToolCall("a", "patch", '{"not": "parsed"}\n', kind=ToolKind.CUSTOM)
    text = spelled(v41().render(talk(user("u"), Message(Role.ASSISTANT, tool_calls=(call,)))))
    assert 'name="input" string="true">{"not": "parsed"}\n</[dsml] parameter>' in text


def test_custom_tools_are_printed_as_the_model_was_taught_them() -> None:
    taught = {"description": "Known.", "parameters": {"type": "object", "x": 1}}
    tools = (
        Tool("patch", "mine", kind=ToolKind.CUSTOM),
        Tool("other", "mine", kind=ToolKind.CUSTOM, grammar=("regex", "a+")),
    )
    text = spelled(v41(functions={"patch": taught}).render(talk(user("u"), tools=tools)))
    assert '{"name": "patch", "description": "Known.", "parameters": {"type": "object"' in text
    assert '"name": "other", "description": "mine\\n\\n' in text
    assert "a+" in text


def test_namespaces_join_names_and_are_found_again() -> None:
    tool = Tool("read", "Reads", namespace="files", namespace_description="Files")
    call = ToolCall("c", "read", "{}", namespace="files")
    talked = talk(user("u"), Message(Role.ASSISTANT, tool_calls=(call,)), tools=(tool,))
    prompt = v41().render(talked)
    assert '{"name": "files::read", "description": "Files\\nReads"' in spelled(prompt)
    assert 'invoke name="files::read"' in spelled(prompt)
    assert prompt.tools == {"files::read": tool}
    old = v4().render(talked)
    assert '{"name": "files__read", "description": "Reads"' in spelled(old)
    assert old.tools == {"files__read": tool}


def test_deferred_tools_appear_where_they_are_declared() -> None:
    late = Tool("late", deferred=True)
    talked = talk(user("u"), Message(Role.SYSTEM, declared_tools=(late,)), tools=(RUN, late))
    line = '{"name": "late", "description": "", "parameters": {}}'
    prompt = v41().render(talked)
    assert spelled(prompt).count('"name"') == 2
    assert f"[user]u[system]\n\nMore tools:\n{line}[assistant]" in spelled(prompt)
    assert list(prompt.tools) == ["run", "late"]
    assert f"{RUN_LINE}\n{line}\nNo others." in spelled(v4().render(talked))
    forbidden = replace(talked, tool_choice=ToolChoice(ToolChoiceMode.NONE))
    assert spelled(v41().render(forbidden)) == "[bos][user]u[assistant][think_close]"
    other = v41().render(replace(talked, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED, ("run",))))
    assert "late" not in spelled(other) and "u[assistant]" in spelled(other)
    assert list(other.tools) == ["run"]


@pytest.mark.parametrize(("encoding", "tag"), [(v4, "tool_calls"), (v41, " calls")])
def test_a_required_call_is_opened_unless_the_model_thinks_first(encoding, tag: str) -> None:
    prompt = encoding().render(talk(user("u"), tools=(RUN,), tool_choice=REQUIRED))
    assert spelled(prompt).endswith(f"[assistant][think_close]\n\n<[dsml]{tag}>\n")
    assert prompt.starts_in_tool_calls
    thinking = encoding().render(talk(user("u"), tools=(RUN,), tool_choice=REQUIRED, thinking=ON))
    assert spelled(thinking).endswith("[assistant][think_open]")
    assert not thinking.starts_in_tool_calls


def test_a_named_tool_is_the_only_one_and_none_means_none() -> None:
    two = (RUN, Tool("walk"))
    named = ToolChoice(ToolChoiceMode.REQUIRED, ("walk",))
    prompt = v41().render(talk(user("u"), tools=two, tool_choice=named))
    assert list(prompt.tools) == ["walk"]
    assert '"run"' not in spelled(prompt)
    none = ToolChoice(ToolChoiceMode.NONE)
    silent = v41().render(talk(user("u"), tools=two, tool_choice=none))
    assert (silent.tool_format, silent.tools) == ("none", {})


def test_reasoning_is_kept_with_tools_and_in_a_running_loop() -> None:
    call = (ToolCall("c", "run", "{}"),)
    past = said(Role.ASSISTANT, "a", reasoning="old")
    loop = said(Role.ASSISTANT, "b", reasoning="new", tool_calls=call)
    result = said(Role.TOOL, "r", tool_call_id="c")
    messages = (user("u"), past, user("v"), loop, result)
    with_tools = spelled(v41().render(talk(*messages, tools=(RUN,), thinking=ON)))
    assert "old[think_close]a" in with_tools
    assert "new[think_close]b" in with_tools
    without = spelled(v41().render(talk(*messages, thinking=ON)))
    assert "[assistant][think_close]a" in without
    assert "new[think_close]b" in without
    assert "new" not in spelled(v41().render(talk(*messages, user("w"), thinking=ON)))
    assert "old" not in spelled(v41().render(talk(*messages, tools=(RUN,))))


@pytest.mark.parametrize(
    ("content", "reasoning", "thinking", "end", "stage"),
    [
        ("c", "r", ON, "[think_open]r[think_close]c", AnswerStage.CONTENT_CONTINUATION),
        ("c", None, ON, "[think_open][think_close]c", AnswerStage.CONTENT_CONTINUATION),
        ("", "r", ON, "[think_open]r", AnswerStage.REASONING_CONTINUATION),
        ("", None, ON, "[think_open]", AnswerStage.REASONING),
        ("c", "r", OFF, "[think_close]c", AnswerStage.CONTENT_CONTINUATION),
    ],
)
def test_a_begun_answer_is_left_open(content, reasoning, thinking, end, stage) -> None:
    begun = said(Role.ASSISTANT, content, reasoning=reasoning, is_prefix=True)
    for encoding in (v4(), v41()):
        prompt = encoding.render(talk(user("u"), begun, thinking=thinking))
        assert turns(prompt) == f"[user]u[assistant]{end}"
        assert prompt.stage is stage
        assert prompt.thinks == bool(thinking.enabled)


def test_every_reminder_is_printed() -> None:
    reminders = (said(Role.REMINDER, "one"), said(Role.REMINDER, "two"))
    for encoding in (v4(), v41()):
        text = turns(encoding.render(talk(user("u"), *reminders, user("v"))))
        assert text.startswith("[user]u[reminder]one[reminder]two[user]v[assistant]")


def test_images_are_seen_on_v41_and_named_on_v4() -> None:
    image = ImagePart("messages[0].content[0]", url="https://x/y.png")
    message = Message(Role.USER, (image, TextPart("<｜image｜>")))
    prompt = v41().render(talk(message))
    assert prompt.images == (image,)
    assert [s.index for s in prompt.segments if isinstance(s, Image)] == [0]
    assert turns(prompt).startswith("[user][image]\n\n<｜image｜>[assistant]")
    blind = v4().render(talk(message))
    assert turns(blind).startswith("[user][no image]\n\n<｜image｜>[assistant]")
    assert not blind.images
    assert "image" in blind.warnings[0]


def test_texts_are_cut_at_messages_so_that_they_are_found_again() -> None:
    messages = (user("first"), user("second"))
    texts = [s for s in v41().render(talk(*messages)).segments if isinstance(s, str)]
    assert texts == ["first", "\n\n", "second"]


SAMPLING = {
    "plain": {"top_p": {"fixed": 1.0}, "max_tokens_bound": 100, "default_max_tokens": 8},
    "thinking": {
        "temperature": {"fixed": 1.0},
        "top_p": {"at_least": 0.95, "default": 0.97},
        "default_max_tokens": 64,
        "default_max_tokens_by_effort": {"max": 128},
    },
}


@pytest.mark.parametrize(
    ("thinking", "wish", "temperature", "top_p", "num_warnings"),
    [
        (OFF, {}, None, 1.0, 0),
        (OFF, {"temperature": 0.3, "top_p": 0.5}, 0.3, 1.0, 1),
        (ON, {}, 1.0, 0.97, 0),
        (ON, {"temperature": 0.3, "top_p": 0.5}, 1.0, 0.95, 2),
        (ON, {"temperature": 1.0, "top_p": 0.99}, 1.0, 0.99, 0),
    ],
)
def test_sampling_follows_the_models_policy_and_says_so(
    thinking, wish, temperature, top_p, num_warnings
) -> None:
    encoding = v41(sampling=SAMPLING)
    options, warnings = encoding.effective_sampling(
        talk(user("u"), thinking=thinking), SamplingOptions(**wish)
    )
    assert (options.temperature, options.top_p) == (temperature, top_p)
    assert len(warnings) == num_warnings


def test_length_has_a_bound_and_a_default_by_effort() -> None:
    encoding = v41(sampling=SAMPLING)
    long = SamplingOptions(max_tokens=101, max_tokens_param="max_output_tokens")
    with pytest.raises(RequestRefused) as caught:
        encoding.effective_sampling(talk(user("u")), long)
    assert caught.value.problems[0].param == "max_output_tokens"
    lowered, warnings = encoding.effective_sampling(
        talk(user("u")), replace(long, lowers_max_tokens=True)
    )
    assert lowered.max_tokens == 100
    assert warnings
    defaults = [
        encoding.render(talk(user("u"), thinking=t)).default_max_tokens
        for t in (OFF, ON, Thinking(effort=Effort.MAX))
    ]
    assert defaults == [8, 64, 128]
