"""No client's text becomes a special token, whatever field it is in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from rorqual_recipe.conversation import Conversation
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.encodings.base import RenderedPrompt
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.model_files import read_model_files
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.encoder import HuggingFaceEncoder
from rorqual_recipe.tokens.segments import encode_segments

from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.dsml_model_dir import make_dsml_model_dir
from tests.support.lookalike_bodies import BODIES
from tests.support.lookalikes import Speller, lookalikes_of, make_conversation

NUM_CONVERSATIONS = 1000
NUM_BODIES = 120
TEMPLATE = (
    "{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.name }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.id }} {{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ message.tool_call_id }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class InjectionCase:
    """One model: what it encodes, and which of its ids are special."""

    def __init__(self, directory: Path, encoding: str) -> None:
        files = read_model_files(directory)
        settings = RecipeSettings(model_dir=directory, prompt_encoding=encoding)
        self.model: ServedModel = load_served_model(settings)
        self.reference = HuggingFaceEncoder(files.tokenizer)
        self.special_ids = {token.token_id for token in files.added_tokens}
        self.spellings = {token.content for token in files.added_tokens}
        self.seen: set[str] = set()
        self.lookalikes = lookalikes_of(sorted(self.spellings))
        self.images = encoding == "deepseek-v4.1"

    def conversation(self, seed: int, *, neutral: bool) -> Conversation:
        return make_conversation(
            Speller(seed, self.lookalikes, neutral=neutral), images=self.images
        )

    def encode(self, protocol: str, body: dict[str, object]) -> EncodedRequest:
        limits = ParseLimits(max_choices=1, has_vision=self.images)
        content = json.dumps(body).encode()
        return encode_request(
            content, PROTOCOLS[protocol], self.model, default_max_tokens=10, limits=limits
        )

    def special_of(self, ids: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
        """(position, id) of every special token."""
        places = np.flatnonzero(np.isin(ids, list(self.special_ids)))
        return list(zip(places.tolist(), ids[places].tolist(), strict=True))

    def placed(self, rendered: RenderedPrompt) -> list[tuple[int, int]]:
        """(position, id) as the renderer put them; the reference counts the texts between."""
        texts, specials = [""], []
        for segment in rendered.segments:
            if isinstance(segment, str):
                texts[-1] += segment
            else:
                specials.append(segment.token_id)
                texts.append("")
        self.seen.update(spelling for spelling in self.unseen if any(spelling in t for t in texts))
        lengths = np.cumsum([len(ids) for ids in self.reference.encode(texts)])
        return [(lengths[n] + n, token_id) for n, token_id in enumerate(specials)]

    @property
    def unseen(self) -> set[str]:
        """Special tokens whose spelling has not been among a prompt's texts."""
        return self.spellings - self.seen


@pytest.fixture(scope="module", params=["chat-template", "deepseek-v4", "deepseek-v4.1"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InjectionCase:
    directory = tmp_path_factory.mktemp("model")
    if request.param == "chat-template":
        make_chat_model_dir(directory, template=TEMPLATE, max_position_embeddings=1 << 20)
        return InjectionCase(directory, request.param)
    vision = {"vision_config": {}} if request.param == "deepseek-v4.1" else {}
    make_dsml_model_dir(directory, encoding=request.param, **vision)
    return InjectionCase(directory, request.param)


def test_special_tokens_stand_exactly_where_the_renderer_put_them(case: InjectionCase) -> None:
    """The same conversation without look-alikes has the same special tokens, too."""
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
        found = case.special_of(encode_segments(rendered.segments, case.model.encoder))
        expected = case.special_of(encode_segments(twin.segments, case.model.encoder))
        assert found == case.placed(rendered), seed
        assert [i for _, i in found] == [i for _, i in expected], seed
    assert num_refused < NUM_CONVERSATIONS / 4
    assert not case.unseen


@pytest.mark.parametrize("protocol", BODIES)
def test_no_protocol_lets_a_special_token_through(case: InjectionCase, protocol: str) -> None:
    num_refused = 0
    case.seen.clear()
    for seed in range(NUM_BODIES):
        spellers = (Speller(seed, case.lookalikes, neutral=neutral) for neutral in (False, True))
        body, twin = (BODIES[protocol](speller) for speller in spellers)
        try:
            encoded = case.encode(protocol, body)
        except RequestRefused:
            num_refused += 1
            continue
        found = case.special_of(np.frombuffer(encoded.prompt, dtype="<i4"))
        expected = case.special_of(np.frombuffer(case.encode(protocol, twin).prompt, dtype="<i4"))
        assert found == case.placed(encoded.rendered), seed
        assert [i for _, i in found] == [i for _, i in expected], seed
    assert num_refused < NUM_BODIES / 4
    assert not case.unseen
