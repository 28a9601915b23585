"""No client's text becomes a special token, whatever field it is in."""

from __future__ import annotations

from pathlib import Path

import pytest
from rorqual_recipe.conversation import Conversation
from rorqual_recipe.encodings.base import RenderedPrompt, Text
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.model_files import read_model_files
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.encoder import HuggingFaceEncoder
from rorqual_recipe.tokens.segments import encode_segments

from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.dsml_model_dir import make_dsml_model_dir
from tests.support.lookalikes import Speller, lookalikes_of, make_conversation

NUM_CONVERSATIONS = 1000


class InjectionCase:
    """One model: what it encodes, and which of its ids are special."""

    def __init__(self, directory: Path, encoding: str) -> None:
        files = read_model_files(directory)
        settings = RecipeSettings(model_dir=directory, prompt_encoding=encoding)
        self.model: ServedModel = load_served_model(settings)
        self.reference = HuggingFaceEncoder(files.tokenizer)
        self.special_ids = {token.token_id for token in files.added_tokens}
        self.lookalikes = lookalikes_of([token.content for token in files.added_tokens])
        self.images = encoding == "deepseek-v4.1"

    def conversation(self, seed: int, *, neutral: bool) -> Conversation:
        return make_conversation(
            Speller(seed, self.lookalikes, neutral=neutral), images=self.images
        )

    def special_of(self, ids: list[int]) -> list[tuple[int, int]]:
        """(position, id) of every special token."""
        return [(n, token_id) for n, token_id in enumerate(ids) if token_id in self.special_ids]

    def placed(self, rendered: RenderedPrompt) -> list[tuple[int, int]]:
        """(position, id) as the renderer put them; the reference counts the texts between."""
        position, text, placed = 0, "", []
        for segment in rendered.segments:
            if isinstance(segment, Text):
                text += segment.text
                continue
            position += len(self.reference.encode([text])[0])
            placed.append((position, segment.token_id))
            position, text = position + 1, ""
        return placed


@pytest.fixture(scope="module", params=["chat-template", "deepseek-v4", "deepseek-v4.1"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InjectionCase:
    directory = tmp_path_factory.mktemp("model")
    if request.param == "chat-template":
        return InjectionCase(make_chat_model_dir(directory), request.param)
    vision = {"vision_config": {}} if request.param == "deepseek-v4.1" else {}
    make_dsml_model_dir(directory, encoding=request.param, **vision)
    return InjectionCase(directory, request.param)


def test_special_tokens_stand_exactly_where_the_renderer_put_them(case: InjectionCase) -> None:
    num_refused = 0
    for seed in range(NUM_CONVERSATIONS):
        try:
            rendered = case.model.encoding.render(case.conversation(seed, neutral=False))
        except RequestRefused:
            num_refused += 1
            with pytest.raises(RequestRefused):
                case.model.encoding.render(case.conversation(seed, neutral=True))
            continue
        twin = case.model.encoding.render(case.conversation(seed, neutral=True))
        ids = encode_segments(rendered.segments, case.model.encoder).tolist()
        twin_ids = encode_segments(twin.segments, case.model.encoder).tolist()
        found = case.special_of(ids)
        assert found == case.placed(rendered), seed
        assert [i for _, i in found] == [i for _, i in case.special_of(twin_ids)], seed
    assert num_refused < NUM_CONVERSATIONS / 4
