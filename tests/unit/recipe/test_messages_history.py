"""Turns of Messages bodies: calls and results, thinking, documents, deferred tools, prefill."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from rorqual_recipe.conversation import ImagePart, Message, ParsedRequest, Role
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits

from tests.support.pdf import make_pdf

MESSAGES = PROTOCOLS["messages"]
LIMITS = ParseLimits(max_choices=1, has_vision=True)
OBJECT = {"type": "object"}
PNG = base64.b64encode(b"\x89PNG").decode()


def parse(*messages: Any, limits: ParseLimits = LIMITS, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "max_tokens": 16, "messages": list(messages), **fields}
    return MESSAGES.parse(json.dumps(body).encode(), limits)


def turns(*messages: Any, **fields: Any) -> tuple[Message, ...]:
    return parse(*messages, **fields).conversation.messages


def refused(*messages: Any, **fields: Any) -> list[str]:
    with pytest.raises(RequestRefused) as caught:
        parse(*messages, **fields)
    return [problem.param for problem in caught.value.problems]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}, **fields}


def result(call_id: str, content: Any = "out", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def texts(message: Message) -> list[str]:
    return [getattr(part, "text", "<image>") for part in message.parts]


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


def in_base64(content: bytes, media_type: str) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return document(type="base64", media_type=media_type, data=data)


def test_a_tool_loop_becomes_turns_in_order() -> None:
    found = turns(
        user(text("q")),
        assistant(
            {"type": "thinking", "thinking": "R1", "signature": ""},
            {"type": "thinking", "thinking": "R2"},
            text("T"),
            call("t1", input={"a": 1}),
            call("t2"),
        ),
        user(result("t2", "two", is_error=True), result("t1", [text("one"), text("1")]), text("?")),
    )
    assert [m.role for m in found] == [
        *(Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.USER)
    ]
    said = found[1]
    assert (said.reasoning, texts(said)) == ("R1\n\nR2", ["T"])
    assert [(c.call_id, c.name, c.arguments) for c in said.tool_calls] == [
        *(("t1", "f", '{"a": 1}'), ("t2", "f", "{}"))
    ]
    assert [(m.tool_call_id, m.is_error, texts(m)) for m in found[2:4]] == [
        *(("t2", True, ["two"]), ("t1", False, ["one", "1"]))
    ]
    assert texts(found[4]) == ["?"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([assistant(call("t"))], "messages[0].content[0]"),
        ([assistant(call("t")), user(text("x"))], "messages[0].content[0]"),
        ([assistant(call("t")), user(text("x"), result("t"))], "messages[0].content[0]"),
        ([assistant(call("t"), call("u")), user(result("u"))], "messages[0].content[0]"),
        ([user(result("t"))], "messages[0].content[0].tool_use_id"),
        (
            [assistant(call("t")), user(result("t"), result("t"))],
            "messages[1].content[1].tool_use_id",
        ),
        ([assistant(call("t"), call("t")), user(result("t"))], "messages[0].content[1].id"),
        ([assistant(call("t", name="")), user(result("t"))], "messages[0].content[0].name"),
        ([assistant(result("t"))], "messages[0].content[0].type"),
        ([assistant(text("a"), {"type": "image"})], "messages[0].content[1].type"),
        ([{"role": "system", "content": [call("t")]}], "messages[0].content[0].type"),
    ],
)
def test_calls_and_results_must_meet(messages: list[Any], param: str) -> None:
    assert refused(user(text("q")), *messages)[0] == f"messages[{int(param[9]) + 1}]{param[11:]}"


def test_results_of_an_unreadable_call_are_no_second_problem() -> None:
    broken = {"type": "tool_use", "id": "t", "name": "f"}
    assert refused(assistant(broken), user(result("t"))) == ["messages[0].content[0].input"]
    assert refused({"role": "assistant"}, user(result("t"))) == ["messages[0].content"]


def test_text_after_a_call_is_kept_and_told() -> None:
    parsed = parse(user(text("q")), assistant(call("t"), text("late")), user(result("t")))
    assert texts(parsed.conversation.messages[1]) == ["late"]
    assert [warning.split(":")[0] for warning in parsed.warnings] == ["messages[1].content[1]"]


@pytest.mark.parametrize(
    "spelled",
    [
        '{"n": 1.50, "big": 12345678901234567890123, "exp": 1E+2, "minus": -0.0}',
        '{"b": 1, "a": [1, {"z": null, "y": "\\"quoted\\" \\\\ line\\n"}]}',
        '{"spaced":  [1,2] }',
        '{"dup": 1, "dup": 2}',
        "[1, null]",
        '"text"',
    ],
)
def test_inputs_keep_the_spelling_of_the_caller(spelled: str) -> None:
    body = json.dumps(
        {"model": "m", "messages": [user(text("q")), assistant(call("t")), user(result("t"))]}
    ).replace('"input": {}', f'"input": {spelled}')
    (tool_call,) = MESSAGES.parse(body.encode(), LIMITS).conversation.messages[1].tool_calls
    assert tool_call.arguments == spelled


def test_a_compact_input_gets_the_spaces_that_models_write() -> None:
    given = {"city": "Köln: a, b", "days": [1, 2.50], "more": {"x": None}}
    body = {"model": "m", "messages": [user(text("q")), assistant(call("t", input=given))]}
    body["messages"].append(user(result("t")))
    compact = json.dumps(body, separators=(",", ":")).encode()
    (tool_call,) = MESSAGES.parse(compact, LIMITS).conversation.messages[1].tool_calls
    assert tool_call.arguments == json.dumps(given, ensure_ascii=False)


def test_a_last_message_of_the_assistant_is_continued() -> None:
    (_, prefix) = turns(user(text("q")), {"role": "assistant", "content": "The answer is"})
    assert (prefix.is_prefix, texts(prefix)) == (True, ["The answer is"])
    thought = {"type": "thinking", "thinking": "hm"}
    assert turns(user(text("q")), assistant(thought))[-1].is_prefix
    closed = turns(user(text("q")), assistant(text("a")), user(text("b")))
    assert not any(message.is_prefix for message in closed)
    for empty in ("", [], [text("")]):
        said = turns(user(text("q")), {"role": "assistant", "content": empty})
        assert [message.role for message in said] == [Role.USER]


def test_late_system_messages_stay_where_they_are() -> None:
    found = turns(user(text("q")), {"role": "system", "content": "mid"}, system="head")
    assert [(m.role, m.stays_in_place) for m in found] == [
        *((Role.SYSTEM, False), (Role.USER, False), (Role.SYSTEM, True))
    ]


def test_deferred_tools_are_declared_where_they_are_found() -> None:
    tools = [
        {"name": "f", "input_schema": OBJECT},
        {"name": "late", "input_schema": OBJECT, "defer_loading": True},
    ]
    found = {"type": "tool_reference", "tool_name": "late"}
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
    said = turns(
        user(text("q")),
        assistant(call("t")),
        user(result("t", [text("x"), found]), text("more")),
        {"role": "system", "content": [text("note"), added]},
        tools=tools,
    )
    assert texts(said[2]) == ["x", "late"]
    assert [m.role for m in said[3:]] == [Role.USER, Role.SYSTEM, Role.SYSTEM]
    assert [[tool.name for tool in m.declared_tools] for m in said[4:]] == [["late"], ["late"]]
    unknown = {"type": "tool_reference", "tool_name": "zz"}
    assert refused(user(text("q")), assistant(call("t")), user(result("t", [unknown]))) == [
        "messages[2].content[0].content[0].tool_name"
    ]


def test_redacted_thinking_is_left_out_and_told() -> None:
    parsed = parse(
        user(text("q")),
        assistant({"type": "redacted_thinking", "data": "xx"}, text("a")),
        user(text("b")),
    )
    assert parsed.conversation.messages[1].reasoning is None
    assert [warning.split(":")[0] for warning in parsed.warnings] == ["messages[1].content[0]"]


def test_documents_become_text() -> None:
    blocks = [
        {**document(type="text", media_type="text/plain", data="plain"), "title": "T"},
        in_base64("größe,1".encode(), "text/csv"),
        document(type="content", content=[text("a"), text("b")]),
        document(type="content", content="c"),
        {
            "type": "search_result",
            "title": "R",
            "source": "https://r",
            "content": [text("found")],
            "citations": {"enabled": False},
        },
    ]
    (message,) = turns(user(*blocks))
    assert texts(message) == [
        *("Title: T\n\nplain", "größe,1", "a", "b", "c"),
        "Title: R\nSource: https://r\n\nfound",
    ]


def test_the_text_of_a_pdf_is_read() -> None:
    pdf = in_base64(make_pdf(["First page", "Second page"]), "application/pdf")
    parsed = parse(user({**pdf, "title": "Report", "citations": {"enabled": True}}, text("Sum up")))
    (message,) = parsed.conversation.messages
    shown, question = texts(message)
    assert shown.startswith("Title: Report\n\n")
    assert shown.index("First page") < shown.index("Second page")
    assert question == "Sum up"
    assert "messages[0].content[0].citations" in {w.split(":")[0] for w in parsed.warnings}


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (in_base64(b"%PDF-1.4 junk", "application/pdf"), "source"),
        (in_base64(b"\xff\xfe\xfd", "text/plain"), "source"),
        (in_base64(b"x", "application/msword"), "source"),
        (document(type="base64", media_type="text/plain", data="?"), "source.data"),
        (document(type="base64", media_type="text/plain"), "source.data"),
        (document(type="text"), "source.data"),
        (document(type="url", url="https://a/b.pdf"), "source.type"),
        (document(type="file", file_id="f"), "source.type"),
        (document(type="odd"), "source.type"),
        (document(type="content", content=[{"type": "odd"}]), "source.content[0].type"),
        ({"type": "document"}, "source"),
        ({"type": "search_result", "title": "t", "source": "s"}, "content"),
    ],
)
def test_a_document_that_cannot_be_read_is_named(block: dict[str, Any], param: str) -> None:
    assert refused(user(block)) == [f"messages[0].content[0].{param}"]


def test_images_are_parts_in_their_place() -> None:
    url = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
    data = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/jpg", "data": PNG},
    }
    found = turns(
        user(text("look"), url, data), assistant(call("t")), user(result("t", [text("x"), url]))
    )
    first, second = found[0].parts[1:]
    assert isinstance(first, ImagePart) and isinstance(second, ImagePart)
    assert (first.url, second.media_type, second.data_base64) == ("https://a/b", "image/jpeg", PNG)
    assert first.param == "messages[0].content[1].source.url"
    assert texts(found[-1]) == ["x", "<image>"]


@pytest.mark.parametrize(
    ("source", "params"),
    [
        ({"type": "url", "url": "nope"}, ["source.url"]),
        ({"type": "url", "url": "https://" + "a" * 8192}, ["source.url"]),
        ({"type": "url"}, ["source.url"]),
        ({"type": "base64", "media_type": "image/tiff", "data": PNG}, ["source.media_type"]),
        ({"type": "base64", "data": "?"}, ["source.media_type", "source.data"]),
        ({"type": "base64", "media_type": "image/png", "data": ""}, ["source.data"]),
        ({"type": "file", "file_id": "f"}, ["source.type"]),
    ],
)
def test_a_wrong_image_is_named(source: dict[str, Any], params: list[str]) -> None:
    expected = [f"messages[0].content[0].{param}" for param in params]
    assert refused(user({"type": "image", "source": source})) == expected


def test_a_model_without_eyes_says_so() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
    blind = ParseLimits(max_choices=1, has_vision=False)
    with pytest.raises(RequestRefused, match="model m has no vision tower"):
        parse(user(image), limits=blind)
