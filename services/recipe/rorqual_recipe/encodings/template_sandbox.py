"""Compiling and running a model's Jinja template with bounds."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ESCAPED = re.compile(r"[^\x00-\x7f\ue000-\uf8ff\U000f0000-\U0010ffff]")


class TemplateRefusal(Exception):
    """The template itself refused the conversation (raise_exception)."""


class PromptTooLarge(ValueError):
    """Rendering passed its bound on the number of characters."""

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars
        super().__init__(f"the prompt passes {max_chars} characters")


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it only shows its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The body, unchanged."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> Template:
    """A template that can neither reach Python nor change what it is given.

    Raises: jinja2.TemplateSyntaxError.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def render_bounded(template: Template, values: Mapping[str, Any], *, max_chars: int) -> str:
    """The template's output. Raises: PromptTooLarge, TemplateRefusal, jinja2.TemplateError."""
    pieces: list[str] = []
    num_chars = 0
    for piece in template.generate(values):
        num_chars += len(piece)
        if num_chars > max_chars:
            raise PromptTooLarge(max_chars)
        pieces.append(piece)
    return "".join(pieces)


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: plain, without HTML escapes.

    Private-use characters are never escaped, since one of them marks what clients wrote.
    """
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text
