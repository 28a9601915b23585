"""`prompt_profile.json`: the fixed sentences and policies of a model's prompt, as data.

The format is described in docs/prompt-profile.md of this service.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rorqual_recipe.conversation import Effort
from rorqual_recipe.model_files import BadModelDirectory

PROFILE_FILE = "prompt_profile.json"
PROFILE_VERSION = 1

TokenName = Literal[
    "bos",
    "eos",
    "system",
    "user",
    "assistant",
    "reminder",
    "think_open",
    "think_close",
    "dsml",
    "image",
]
_OPTIONAL_TOKENS = frozenset({"system", "image"})


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TokenRef(_Frozen):
    """A special token in the middle of a fixed text."""

    token: TokenName


Pieces = list[str | TokenRef]
"""A fixed text: strings are ordinary text, objects are special tokens."""


class EffortLine(_Frozen):
    """What is printed for one effort word. percent: where it stands between 1 and 100."""

    percent: int = Field(ge=1, le=100)
    text: Pieces


class NumberedEffort(_Frozen):
    """What is printed around an effort given as a number, for models that know numbers."""

    before: Pieces
    after: Pieces


class EffortTexts(_Frozen):
    """Lines at the head of a prompt in thinking mode; one for every effort word."""

    default: Effort = Effort.HIGH
    lines: dict[Effort, EffortLine]
    number: NumberedEffort | None = None

    @model_validator(mode="after")
    def _every_effort(self) -> "EffortTexts":
        missing = [effort.value for effort in Effort if effort not in self.lines]
        if missing:
            raise ValueError(f"no line for the efforts {', '.join(missing)}")
        return self


class ToolTexts(_Frozen):
    """The section that declares tools: one JSON line a tool between two fixed texts.

    update: what comes before the lines of tools that are declared later.
    """

    before: Pieces
    after: Pieces
    update: Pieces


class FormatTexts(_Frozen):
    """Sections that ask for a shape. json_schema: before the schema's own text."""

    json_object: Pieces
    json_schema: Pieces


class FunctionText(_Frozen):
    """How the model was taught a tool; stands in for what the client says about it."""

    description: str
    parameters: dict[str, Any]


class NumberRule(_Frozen):
    """What becomes of a number that the client may set; an empty rule leaves it alone.

    fixed: always this. at_least: a wish below is raised. default: when there is no wish.
    """

    fixed: float | None = None
    at_least: float | None = None
    default: float | None = None

    def apply(self, wish: float | None) -> float | None:
        """The number in effect; None = the service's default."""
        if self.fixed is not None:
            return self.fixed
        if wish is None:
            return self.default
        return wish if self.at_least is None else max(wish, self.at_least)


class SamplingRules(_Frozen):
    """Policy of one mode. default_max_tokens_by_effort: where it differs from the default."""

    temperature: NumberRule = NumberRule()
    top_p: NumberRule = NumberRule()
    max_tokens_bound: int | None = Field(None, ge=1)
    default_max_tokens: int | None = Field(None, ge=1)
    default_max_tokens_by_effort: dict[Effort, int] = Field(default_factory=dict)


class SamplingPolicy(_Frozen):
    """Policies by mode: not thinking, thinking, and thinking with tools declared."""

    plain: SamplingRules = SamplingRules()
    thinking: SamplingRules = SamplingRules()
    thinking_with_tools: SamplingRules = SamplingRules()


class PromptProfile(_Frozen):
    """A model's prompt as far as it is not the same for all models of its encoding.

    late_system: around a system message between turns, in a format with no place for it.
    image_text: printed for an image that the model can't see; None = such a request is refused.
    """

    format: Literal["rorqual-prompt-profile"]
    version: Literal[1]
    encoding: str
    source: str = ""
    thinks_by_default: bool = True
    tokens: dict[TokenName, str]
    effort: EffortTexts
    tools: ToolTexts
    formats: FormatTexts
    late_system: tuple[str, str] | None = None
    image_text: str | None = None
    functions: dict[str, FunctionText] = Field(default_factory=dict)
    sampling: SamplingPolicy = SamplingPolicy()

    @model_validator(mode="after")
    def _tokens_it_needs(self) -> "PromptProfile":
        names = set(TokenName.__args__)  # type: ignore[attr-defined]
        missing = sorted(names - _OPTIONAL_TOKENS - self.tokens.keys())
        if missing:
            raise ValueError(f"tokens: missing {', '.join(missing)}")
        empty = sorted(name for name, spelling in self.tokens.items() if not spelling)
        if empty:
            raise ValueError(f"tokens: empty spelling of {', '.join(empty)}")
        return self


class _Versioned(BaseModel):
    """What every version of the format has."""

    format: Literal["rorqual-prompt-profile"]
    version: int


def read_profile(directory: Path) -> PromptProfile | None:
    """The profile beside a checkpoint, None when there is none.

    Raises: BadModelDirectory naming every field that is wrong.
    """
    path = directory / PROFILE_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise BadModelDirectory(path, f"unreadable: {err}") from err
    return parse_profile(content, path)


def parse_profile(content: bytes, path: Path) -> PromptProfile:
    """A profile from its JSON text; `path` is for the error. Raises: BadModelDirectory."""
    try:
        version = _Versioned.model_validate_json(content).version
        if version != PROFILE_VERSION:
            reason = f"version {version} is not supported, only {PROFILE_VERSION}"
            raise BadModelDirectory(path, reason)
        return PromptProfile.model_validate_json(content)
    except ValidationError as err:
        faults = [_fault(entry["loc"], entry["msg"]) for entry in err.errors()]
        raise BadModelDirectory(path, "; ".join(faults)) from err


def _fault(loc: Sequence[int | str], message: str) -> str:
    return f"{'.'.join(map(str, loc)) or 'profile'}: {message}"
