"""A whole fleet with its models on the accelerator."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.seeing import SeeingClient, data_url, image_part, text_part
from tests.support.fleet import running_fleet
from tests.support.model import random_v41_dir
from tests.support.pictures import picture_file
from tests.support.waiting import until_blocking

NUM_TOKENS = 12
_LONG = " river" * 200


def test_prompts_with_images_are_answered_and_cached(device: str, tmp_path: Path) -> None:
    """Text and image through vision, prefill, handover, decode and the block store."""
    env = {f"RORQUAL_{name}_DEVICE": device for name in ("VISION", "PREFILL", "DECODE")}
    model_dir = random_v41_dir()
    picture = image_part(data_url(picture_file(1, 160, 130)))
    messages = [{"role": "user", "content": [picture, text_part("what is it?" + _LONG)]}]
    with running_fleet(tmp_path, model=str(model_dir), env=env) as fleet:
        client = SeeingClient(fleet.base_url, model_dir)
        first = client.ask(messages, max_tokens=NUM_TOKENS)
        assert 0 < len(first.output_ids) <= NUM_TOKENS
        assert first.cached_tokens == 0
        until_blocking(lambda: client.ask(messages, max_tokens=NUM_TOKENS).cached_tokens >= 128)
        sampled = client.ask(messages, max_tokens=NUM_TOKENS, temperature=1.0, seed=3)
        assert sampled.output_ids
        client.http.close()
