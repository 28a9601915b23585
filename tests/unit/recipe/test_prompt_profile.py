"""A model's prompt profile: read strictly, and every fault is named by its field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rorqual_recipe.encodings import UnknownEncoding
from rorqual_recipe.encodings.chat_template import ChatTemplateEncoding
from rorqual_recipe.encodings.deepseek import DeepSeekEncoding
from rorqual_recipe.model import load_served_model
from rorqual_recipe.model_files import BadModelDirectory
from rorqual_recipe.profile import PROFILE_FILE, parse_profile, read_profile
from rorqual_recipe.settings import RecipeSettings

from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.dsml_model_dir import TOKENS, make_dsml_model_dir, make_profile

PATH = Path("prompt_profile.json")
V41 = "deepseek-v4.1"


def changed(**fields: object) -> bytes:
    profile = json.loads(json.dumps(make_profile(V41)))
    for name, value in fields.items():
        *parents, last = name.split("__")
        place = profile
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(profile).encode()


def test_a_profile_is_read_as_it_is_written() -> None:
    profile = parse_profile(changed(), PATH)
    assert profile.encoding == V41
    assert profile.tools.before[1].token == "dsml"
    assert profile.thinks_by_default


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "profile: Invalid JSON"),
        (b"[]", "profile: "),
        (changed(format="other"), "format: "),
        (changed(version=2), "version 2 is not supported, only 1"),
        (changed(tokens__dsml=None), "tokens: missing dsml"),
        (changed(tokens__eos=""), "tokens: empty spelling of eos"),
        (changed(tokens__other="x"), "tokens.other.\\[key\\]: "),
        (changed(effort__lines__max=None), "effort: .*no line for the efforts max"),
        (changed(effort__lines__low={"percent": 0, "text": []}), "effort.lines.low.percent: "),
        (changed(tools__before="text"), "tools.before: "),
        (changed(tools__before=[{"token": "none"}]), r"tools.before.0.TokenRef.token: "),
        (changed(tools__typo=[]), "tools.typo: Extra inputs"),
        (changed(sampling={"plain": {"top_p": {"fixed": "1"}}}), "sampling.plain.top_p.fixed: "),
        (changed(formats=None), "formats: Field required"),
    ],
)
def test_a_fault_is_named_by_its_field(content: bytes, reason: str) -> None:
    with pytest.raises(BadModelDirectory, match=reason):
        parse_profile(content, PATH)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(BadModelDirectory) as caught:
        parse_profile(changed(formats=None, tools__after=None), PATH)
    assert "formats:" in caught.value.reason
    assert "tools.after:" in caught.value.reason


def test_without_a_file_there_is_no_profile(tmp_path: Path) -> None:
    assert read_profile(tmp_path) is None


def test_the_profile_beside_a_checkpoint_decides_its_encoding(tmp_path: Path) -> None:
    plain = make_chat_model_dir(tmp_path / "plain")
    ours = make_dsml_model_dir(tmp_path / "ours", encoding=V41)
    by_template = load_served_model(RecipeSettings(model_dir=plain)).encoding
    by_profile = load_served_model(RecipeSettings(model_dir=ours)).encoding
    assert isinstance(by_template, ChatTemplateEncoding)
    assert isinstance(by_profile, DeepSeekEncoding)
    told = RecipeSettings(model_dir=ours, prompt_encoding="chat-template")
    assert isinstance(load_served_model(told).encoding, ChatTemplateEncoding)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoding": "deepseek-v5"}, "unknown prompt encoding 'deepseek-v5'"),
        ({"encoding": "deepseek-v4.1", "system": "<nowhere>"}, "no special token '<nowhere>'"),
        ({"encoding": "deepseek-v4.1", "image": None}, "tokens: missing image"),
    ],
)
def test_a_profile_that_does_not_fit_stops_the_start(tmp_path: Path, change, reason) -> None:
    make_dsml_model_dir(tmp_path, encoding=V41)
    profile = make_profile(change["encoding"])
    tokens = {**profile["tokens"], **{k: v for k, v in change.items() if k != "encoding"}}
    profile["tokens"] = {name: text for name, text in tokens.items() if text is not None}
    (tmp_path / PROFILE_FILE).write_text(json.dumps(profile), encoding="utf-8")
    with pytest.raises((BadModelDirectory, UnknownEncoding), match=reason):
        load_served_model(RecipeSettings(model_dir=tmp_path))


def test_an_encoding_that_needs_a_profile_says_so(tmp_path: Path) -> None:
    make_chat_model_dir(tmp_path)
    settings = RecipeSettings(model_dir=tmp_path, prompt_encoding=V41)
    with pytest.raises(BadModelDirectory, match=r"prompt_profile.json: missing.*deepseek-v4.1"):
        load_served_model(settings)


def test_a_token_of_the_profile_that_text_can_become_stops_the_start(tmp_path: Path) -> None:
    make_dsml_model_dir(tmp_path, encoding=V41)
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"]:
        if token["content"] == TOKENS["user"]:
            token.update(content="é", special=False)
    profile = json.loads(json.dumps(make_profile(V41)))
    profile["tokens"]["user"] = "é"
    (tmp_path / PROFILE_FILE).write_text(json.dumps(profile), encoding="utf-8")
    token_id = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "é")
    tokenizer["model"]["vocab"]["Ã©"] = token_id
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(BadModelDirectory, match="plain text can become"):
        load_served_model(RecipeSettings(model_dir=tmp_path))
