"""A model directory with a chat template and special tokens, and no weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MODEL_ID = "tiny-chat"
MAX_CONTEXT_TOKENS = 4096
FINGERPRINT = "0123456789abcdef0123456789abcdef"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog. system user assistant tool\n",
    "Hello, world! How are you today? I'm fine, thanks. <|im_start|> <|im_end|>\n",
    "深度求索把推理服务拆开。 naïve café — “quotes” 👩‍👩‍👧‍👦\n",
)


def make_chat_tokenizer() -> Tokenizer:
    """Byte-level BPE of about 600 tokens; the first ids are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(token, special=True) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer


def make_chat_model_dir(directory: Path, *, template: str = TEMPLATE, **config: object) -> Path:
    """Write what recipe reads; `config` adds to config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    make_chat_tokenizer().save(str(directory / "tokenizer.json"))
    _write(directory / "rorqual.json", {"id": MODEL_ID, "fingerprint": FINGERPRINT})
    _write(directory / "config.json", {"max_position_embeddings": MAX_CONTEXT_TOKENS, **config})
    _write(
        directory / "tokenizer_config.json",
        {"chat_template": template, "bos_token": SPECIALS[1], "eos_token": SPECIALS[2]},
    )
    return directory


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
