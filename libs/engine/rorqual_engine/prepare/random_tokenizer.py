"""A small byte-level BPE with DeepSeek's special tokens, trained on text made up from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE, NOISE = "<｜image｜>", "<｜▁noise▁｜>"
_TURNS = (
    *("<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<｜latest_reminder｜>"),
    *("<think>", "</think>", "｜DSML｜"),
)
_PLACES = (
    *("<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>", "<｜point｜>", "<｜/point｜>"),
    *("<｜polygon｜>", "<｜/polygon｜>"),
)
_TASKS = (
    *("<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>"),
    *("<｜read_url｜>", "<｜EOT｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
_BEHIND_NOISE = 4
_ADDED = (*_TURNS, *_PLACES, *_TASKS)
ADDED_TOKENS = (*_ADDED[:-_BEHIND_NOISE], IMAGE, NOISE, *_ADDED[-_BEHIND_NOISE:])
"""Behind the trained vocabulary, in the order of their ids."""
VOCAB_SIZE = 4096

_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_WORDS = """
the of and to in a is that it for was on are as with they be at one have this from or had by not
word but what some we can out other were all there when up use your how said an each she which do
their time if will way about many then them write would like so these her long make thing see him
two has look more day could go come did number sound no most people my over know water than call
first who may down side been now find any new work part take get place made live where after back
little only round man year came show every good me give our under name very through just form
sentence great think say help low line differ turn cause much mean before move right boy old too
same tell does set three want air well also play small end put home read hand port large spell add
even land here must big high such follow act why ask men change went light kind off need house
picture try us again animal point mother world near build self earth father head stand own page
should country found answer school grow study still learn plant cover food sun four between state
keep eye never last let thought city tree cross farm hard start might story saw far sea draw left
late run while press close night real life few north open seem together next white children begin
got walk example ease paper group always music those both mark often letter until mile river car
feet care second book carry took science eat room friend began idea fish mountain stop once base
hear horse cut sure watch color face wood main enough plain girl usual young ready above ever red
list though feel talk bird soon body dog family direct pose leave song measure door product black
short numeral class wind question happen complete ship area half rock order fire south problem
piece told knew pass since top whole king space heard best hour better true during hundred five
model token cache engine request stream prompt layer window page prefix batch tensor
"""
_HAN = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能"
    "对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前"
    "面又定见只主没公从知使模型推理缓存请求词元深度问答数据"
)
_CODE = (
    "def {0}({1}, {2}):\n    return {1} + {2}\n",
    'for {0} in range({3}):\n    print(f"{{{0}}}: {{{1}[{0}]}}")\n',
    '{{"{0}": {3}, "{1}": ["{2}", true, null], "{4}": {{"type": "string"}}}}\n',
    "class {0}:\n    def __init__(self, {1}: int = {3}) -> None:\n        self.{1} = {1}\n",
    "if ({0} != {1}) {{ {2}->{4}(&{0}, {3}); }} // {4}\n",
    "# {0} {1}\n\n- {2}: `{4}`\n- https://{0}.example/{1}?{2}={3}\n",
)
_SENTENCES = (
    "The {0} {1} is {2}, and {4} {3} times.\n",
    "What does the {0} say about {1}? It's {2} — I don't know {4}.\n",
    "{0} {1} {2} {4}; {3}.{3}% of {1}, “{2}” (see {0}).\n\n",
)
_NUM_LINES = 2500
_SYLLABLES = """
ba ker li mon ta res vo in der sta pro fla ge shu ment er ing ous tri qua zel phi con dis un ver al
"""


def build_random_tokenizer(seed: int = 0) -> Tokenizer:
    """4096 tokens: beginning, end and padding, the trained ones, then ADDED_TOKENS."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS),
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, PAD)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_lines(seed), trainer)
    for token in ADDED_TOKENS:
        is_special = token in (IMAGE, NOISE)
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_special)])
    return tokenizer


def write_random_tokenizer(directory: Path, max_context_tokens: int, seed: int = 0) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    build_random_tokenizer(seed).save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _lines(seed: int) -> Iterator[str]:
    """Sentences, code and Chinese; frequent words are frequent, and many words are made up."""
    rng = random.Random(seed)
    syllables = _SYLLABLES.split()
    made_up = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(900)]
    words = _WORDS.split() + made_up
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for number in range(_NUM_LINES):
        names = rng.choices(words, weights, k=2) + rng.choices(words, k=2)
        rng.shuffle(names)
        pattern = rng.choice(_SENTENCES if number % 3 else _CODE)
        line = pattern.format(*names[:3], rng.randint(0, 4096), names[3])
        yield line if number % 5 else line.capitalize()
        if number % 4 == 0:
            yield "".join(rng.choices(_HAN, k=rng.randint(4, 16))) + "。\n"
