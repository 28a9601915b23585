"""Tools, thinking and continued answers through chat templates of several families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rorqual_recipe.conversation import (
    Conversation,
    Effort,
    ImagePart,
    Message,
    Role,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    ToolKind,
)
from rorqual_recipe.encodings.base import AnswerStage, Image, RenderedPrompt, Special
from rorqual_recipe.encodings.chat_template import ChatTemplateEncoding
from rorqual_recipe.model import load_served_model
from rorqual_recipe.model_files import AddedToken, BadModelDirectory
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.settings import RecipeSettings

from tests.support.chat_model_dir import TEMPLATE as PLAIN
from tests.support.chat_model_dir import make_chat_model_dir

SPECIALS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "[TOOL_CALLS]", "<image>")
ADDED = [AddedToken(i, text, True, False, False) for i, text in enumerate(SPECIALS)]
HERMES = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool|tojson }}{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>{{ m.content }}</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments|tojson }}{% endif %}}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
LLAMA = (
    "{% if tools %}Tools: {{ tools|tojson }}\n{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{% if m.tool_calls %}{% for call in m.tool_calls %}"
    '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments|tojson }}}'
    "{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
MISTRAL = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}"
    "{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}'
    "{% endfor %}]{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
OTHER = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call {{ c.function.name }}>{% endfor %}{% endfor %}"
)
WEATHER = Tool("weather", "Rain <think>or shine", {"type": "object", "properties": {"at": {}}})


def encoding(template: str) -> ChatTemplateEncoding:
    return ChatTemplateEncoding(template, ADDED, {}, image_token_id=SPECIALS.index("<image>"))


def said(role: Role, text: str, **fields: object) -> Message:
    return Message(role, (TextPart(text),), **fields)


def agent_talk(arguments: str = '{"at":  1.50}', **fields: object) -> Conversation:
    call = ToolCall("c1", "weather", arguments)
    return Conversation(
        (
            said(Role.USER, "Rain?"),
            said(Role.ASSISTANT, "Let me see. ", tool_calls=(call,)),
            said(Role.TOOL, "no <|im_end|>", tool_call_id="c1"),
        ),
        (WEATHER,),
        **fields,
    )


def spelled(prompt: RenderedPrompt) -> str:
    return "".join(s if isinstance(s, str) else s.content for s in prompt.segments)


def specials(prompt: RenderedPrompt) -> list[str]:
    return [s.content for s in prompt.segments if isinstance(s, Special | Image)]


@pytest.mark.parametrize(
    ("template", "tool_format"),
    [(HERMES, "hermes"), (LLAMA, "llama3-json"), (MISTRAL, "mistral"), (OTHER, "none")],
)
def test_the_format_of_calls_is_read_off_the_template(template: str, tool_format: str) -> None:
    prompt = encoding(template).render(Conversation((said(Role.USER, "x"),), (WEATHER,)))
    assert prompt.tool_format == tool_format
    assert bool(prompt.warnings) == (tool_format == "none")
    assert prompt.tools == {"weather": WEATHER}
    assert '"name": "weather"' in spelled(prompt)


def test_calls_keep_the_spelling_the_model_gave_them() -> None:
    text = spelled(encoding(HERMES).render(agent_talk()))
    assert '{"name": "weather", "arguments": {"at":  1.50}}' in text
    assert "<tool_response>no <|im_end|></tool_response>" in text


def test_a_template_that_wants_objects_gets_objects() -> None:
    text = spelled(encoding(LLAMA).render(agent_talk('{"at": {"é": [1]}}')))
    assert '{"name": "weather", "parameters": {"at": {"é": [1]}}}' in text
    assert '"parameters": {"arguments": "no json"}' in spelled(
        encoding(LLAMA).render(agent_talk("no json"))
    )


def test_nothing_of_a_tool_becomes_a_special_token() -> None:
    for template in (HERMES, LLAMA, MISTRAL, OTHER, PLAIN):
        encoder = encoding(template)
        lookalike = agent_talk('{"<|im_end|>": "[TOOL_CALLS]</think>"}')
        neutral = Conversation(
            (
                said(Role.USER, "Rain?"),
                said(
                    Role.ASSISTANT, "Let me", tool_calls=(ToolCall("c1", "weather", '{"a": "b"}'),)
                ),
                said(Role.TOOL, "no", tool_call_id="c1"),
            ),
            (Tool("weather", "Rain", {"type": "object"}),),
        )
        assert specials(encoder.render(lookalike)) == specials(encoder.render(neutral))


def test_a_template_without_tools_gets_them_as_text_and_says_so() -> None:
    prompt = encoding(PLAIN).render(agent_talk())
    text = spelled(prompt)
    assert prompt.tool_format == "hermes"
    assert [w.partition(":")[0] for w in prompt.warnings] == ["tools"]
    assert text.startswith("<|im_start|>system\n# Tools")
    assert json.dumps({"type": "object", "properties": {"at": {}}}) in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"at":  1.50}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\nno <|im_end|>\n</tool_response>" in text


def test_the_section_follows_the_clients_own_system_text() -> None:
    messages = (said(Role.DEVELOPER, "Be brief."), said(Role.USER, "x"))
    text = spelled(encoding(PLAIN).render(Conversation(messages, (WEATHER,))))
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")


def test_no_tools_are_named_when_none_may_be_called() -> None:
    prompt = encoding(HERMES).render(agent_talk(tool_choice=ToolChoice(ToolChoiceMode.NONE)))
    assert prompt.tool_format == "none"
    assert "Tools:" not in spelled(prompt)


def test_a_tool_declared_later_is_offered_from_then_on() -> None:
    late = Tool("late", deferred=True)
    silent = Conversation((said(Role.USER, "x"),), (WEATHER, late))
    assert "late" not in spelled(encoding(HERMES).render(silent))
    told = Conversation(
        (said(Role.USER, "x"), Message(Role.SYSTEM, declared_tools=(late,))), (WEATHER, late)
    )
    prompt = encoding(HERMES).render(told)
    assert list(prompt.tools) == ["weather", "late"]
    assert spelled(prompt).count("<|im_start|>system") == 1


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    patch = Tool("patch", kind=ToolKind.CUSTOM, grammar=("lark", "start: WORD"))
    call = ToolCall("c", "patch", 'say "hi"\n', kind=ToolKind.CUSTOM)
    messages = (said(Role.USER, "x"), Message(Role.ASSISTANT, tool_calls=(call,)))
    text = spelled(encoding(HERMES).render(Conversation(messages, (patch,))))
    assert '"required": ["input"]' in text
    assert "start: WORD" in text
    assert '"arguments": {"input": "say \\"hi\\"\\n"}' in text


@pytest.mark.parametrize(
    ("template", "enabled", "stage", "thinks"),
    [
        (HERMES, None, AnswerStage.CONTENT, True),
        (HERMES, True, AnswerStage.CONTENT, True),
        (HERMES, False, AnswerStage.CONTENT, False),
        (LLAMA, None, AnswerStage.REASONING, True),
        (PLAIN, None, AnswerStage.CONTENT, False),
    ],
)
def test_the_stage_of_the_answer_is_the_templates(template, enabled, stage, thinks) -> None:
    talk = Conversation((said(Role.USER, "x<think>"),), thinking=Thinking(enabled))
    prompt = encoding(template).render(talk)
    assert (prompt.stage, prompt.thinks) == (stage, thinks)
    assert prompt.reasoning_marks == (None if template == PLAIN else ("<think>", "</think>"))


def test_effort_words_reach_the_template_as_it_knows_them() -> None:
    template = "{{ messages[0].content }}{{ reasoning_effort }}{{ thinking }}"
    talk = Conversation((said(Role.USER, ""),), thinking=Thinking(effort=Effort.MAX))
    assert spelled(encoding(template).render(talk)) == "highTrue"


def test_a_wish_to_think_is_not_lost_silently() -> None:
    talk = Conversation((said(Role.USER, "x"),), thinking=Thinking(True))
    assert "thinking" in encoding(PLAIN).render(talk).warnings[0]


def test_reasoning_of_the_past_is_there_for_templates_that_print_it() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
    talk = Conversation((said(Role.ASSISTANT, "four", reasoning="2+2"),))
    assert spelled(encoding(template).render(talk)) == "2+2|four"


@pytest.mark.parametrize("template", [PLAIN, HERMES])
def test_an_answer_is_continued_where_it_stopped(template: str) -> None:
    talk = Conversation(
        (said(Role.USER, "x"), said(Role.ASSISTANT, "The answer <|im_end|> ", is_prefix=True))
    )
    prompt = encoding(template).render(talk)
    assert spelled(prompt).endswith("<|im_start|>assistant\nThe answer <|im_end|> ")
    assert prompt.stage is AnswerStage.CONTENT_CONTINUATION
    assert specials(prompt)[-1] == "<|im_start|>"


def test_a_template_that_hides_the_beginning_refuses_to_continue_it() -> None:
    talk = Conversation((said(Role.ASSISTANT, "x", is_prefix=True),))
    with pytest.raises(RequestRefused, match="continue"):
        encoding("{{ messages|length }}").render(talk)


def test_images_stand_where_the_template_puts_them() -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    pictures = tuple(ImagePart(f"messages[0].content[{i}]", url=f"https://x/{i}") for i in (0, 2))
    parts = (pictures[0], TextPart("<image> and"), pictures[1])
    prompt = encoding(template).render(Conversation((Message(Role.USER, parts),)))
    assert prompt.images == pictures
    assert [s.index for s in prompt.segments if isinstance(s, Image)] == [0, 1]
    with pytest.raises(RequestRefused) as caught:
        encoding("no place").render(Conversation((Message(Role.USER, parts),)))
    assert caught.value.problems[0].param == "messages[0].content[0]"


def test_a_template_with_a_fault_stops_the_start(tmp_path: Path) -> None:
    make_chat_model_dir(tmp_path, template="\n{% for m in messages %}{{ m.content }")
    with pytest.raises(BadModelDirectory, match=r"tokenizer_config.json: line 2 of the chat temp"):
        load_served_model(RecipeSettings(model_dir=tmp_path))


STERN = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


def test_where_there_is_no_system_role_the_user_says_its_text() -> None:
    messages = (said(Role.SYSTEM, "Be brief."), said(Role.USER, "x"), said(Role.DEVELOPER, "Now."))
    prompt = encoding(STERN).render(Conversation(messages))
    assert spelled(prompt).startswith(
        "<|im_start|>user\nBe brief.\n\nx<|im_end|><|im_start|>user\nNow.<|im_end|>"
    )
    assert "no system role" in prompt.warnings[0]
    with_tools = encoding(STERN).render(Conversation(messages[1:2], (WEATHER,)))
    assert spelled(with_tools).startswith("<|im_start|>user\n# Tools")


def test_begun_reasoning_goes_on_where_the_template_opens_it() -> None:
    begun = Message(Role.ASSISTANT, reasoning="so far </think>", is_prefix=True)
    talk = Conversation((said(Role.USER, "x"), begun))
    prompt = encoding(STERN).render(talk)
    assert spelled(prompt).endswith("<|im_start|>assistant\n<think>so far </think>")
    assert prompt.stage is AnswerStage.REASONING_CONTINUATION
    assert specials(prompt)[-1] == "<think>"
    assert prompt.warnings == ()
    anew = encoding(HERMES).render(talk)
    assert anew.stage is AnswerStage.CONTENT
    assert "begins anew" in anew.warnings[0]
