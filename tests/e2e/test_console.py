"""The console in a real browser; skipped where Chromium or playwright is not installed."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.support.fleet import RunningFleet, running_fleet
from tests.support.waiting import WAIT_S
from training.tiny_v41.tasks.exercise import Picture, Shape
from training.tiny_v41.tasks.shapes import paint

playwright = pytest.importorskip("playwright.sync_api", reason="make test-console installs it")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SHOTS = os.environ.get("SCREENSHOTS")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium: apt-get install chromium")
WAIT_MS = WAIT_S * 1000
RED_DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/w38GIAXDIBKE0DHxgl"
    "jNBAAO9TXL0Y4OHwAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, fleet: RunningFleet, model: str) -> Iterator[Any]:
    """The console, opened; whatever the page logs as an error fails the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(WAIT_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: _note(said, problems))
    page.on("request", lambda request: _stays_here(request.url, fleet, problems))
    page.goto(f"{fleet.base_url}/console/")
    page.locator("select option", has_text=model).first.wait_for(state="attached")
    yield page
    page.close()
    assert not problems


@pytest.fixture
def page(browser: Any, shared_fleet: RunningFleet) -> Iterator[Any]:
    with opened(browser, shared_fleet, "smollm2") as page:
        yield page


@pytest.fixture(scope="module")
def elastic_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Of the model that sees; a second decode is there as soon as five requests are."""
    with running_fleet(
        tmp_path_factory.mktemp("elastic"),
        model="tiny-v41",
        max_instances={"decode": 2},
        env={
            "RORQUAL_DECODE_MAX_RUNNING": "4",
            "RORQUAL_SCALER_UP_AFTER_S": "1",
            "RORQUAL_SCALER_DOWN_AFTER_S": "2",
            "RORQUAL_SCALER_WINDOW_S": "3",
        },
    ) as running:
        yield running


@pytest.fixture
def elastic_page(browser: Any, elastic_fleet: RunningFleet) -> Iterator[Any]:
    with opened(browser, elastic_fleet, "tiny-v41") as page:
        yield page


def _note(said: Any, problems: list[str]) -> None:
    """An answer that refuses is no fault of the page."""
    if said.type == "error" and "Failed to load resource" not in said.text:
        problems.append(said.text)


def _stays_here(url: str, fleet: RunningFleet, problems: list[str]) -> None:
    if not url.startswith((fleet.base_url, "data:", "blob:")):
        problems.append(f"asked another host: {url}")


def shoot(page: Any, name: str) -> None:
    """A picture for the docs, when SCREENSHOTS names a folder."""
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def ask(page: Any, text: str, protocol: str = "chat") -> str:
    """What the model answers."""
    page.get_by_label("Protocol").select_option(protocol)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("24")
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Send").wait_for()
    answers = page.locator(".turn.assistant")
    answers.last.get_by_role("link", name="trace").wait_for()
    return str(answers.last.inner_text())


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_an_answer_streams_in_every_protocol(page: Any, protocol: str) -> None:
    assert "Paris" in ask(page, "What is the capital of France?", protocol)
    page.get_by_text("Raw response").click()
    assert '"model"' in page.locator(".raw pre").last.inner_text()
    if protocol == "chat":
        shoot(page, "console-chat")


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_trace_of_an_answer_opens(page: Any, shared_fleet: RunningFleet, protocol: str) -> None:
    assert (shared_fleet.home / "traces").is_dir()  # else its spans are in a collector
    ask(page, "What is the capital of France?", protocol)
    page.get_by_role("link", name="trace").click()
    page.locator(".timeline li", has_text="decode.generate").wait_for()
    page.locator(".timeline button", has_text="chat smollm2").click()
    page.locator(".attributes dt", has_text="gen_ai.request.model").wait_for()
    if protocol == "chat":
        shoot(page, "console-trace")
    page.locator("td a").first.wait_for()


def test_what_a_server_refuses_is_shown_in_its_words(page: Any) -> None:
    page.get_by_text("JSON schema of the answer").click()
    page.get_by_label("JSON Schema").fill('{"type": "nonsense"}')
    page.get_by_label("Message", exact=True).fill("Hello")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "nonsense" in alert.inner_text() or "schema" in alert.inner_text().lower()
    page.get_by_label("JSON Schema").fill("{")
    page.keyboard.press("Tab")
    page.get_by_label("Message", exact=True).fill("Hello")
    page.keyboard.press("Enter")
    page.get_by_text("is not JSON").wait_for()


def test_an_image_travels_and_a_model_without_eyes_says_so(page: Any, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(base64.b64decode(RED_DOT.partition(",")[2]))
    page.get_by_label("Image").set_input_files(picture)
    page.get_by_label("Message", exact=True).fill("What is this?")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "vision" in alert.inner_text().lower()


def test_a_model_with_eyes_answers_about_an_image(elastic_page: Any, tmp_path: Path) -> None:
    file = tmp_path / "circle.png"
    circle = Picture(3, (Shape("red", "circle", 1, 1),), background=140, jitter=1)
    Image.fromarray(paint(circle)).save(file)
    elastic_page.get_by_label("Image").set_input_files(file)
    said = ask(elastic_page, "What colour is the circle?")
    assert "red" in said.lower()


def test_the_fleet_map_follows_a_scale_up(elastic_page: Any, elastic_fleet: RunningFleet) -> None:
    elastic_page.goto(f"{elastic_fleet.base_url}/console/#/fleet")
    decode = elastic_page.get_by_role("region", name="decode")
    decode.get_by_role("heading", name="decode 1", exact=True).wait_for()
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(_long_answer, elastic_fleet, number) for number in range(12)]
        elastic_page.set_default_timeout(2 * WAIT_MS)
        decode.get_by_role("heading", name="decode 2", exact=True).wait_for()
        elastic_page.get_by_role("cell", name="+1", exact=True).first.wait_for()
        elastic_page.set_viewport_size({"width": 1280, "height": 1600})
        shoot(elastic_page, "console-fleet")
        assert [answer.result() for answer in answers] == [200] * 12
    decode.get_by_role("heading", name="decode 1", exact=True).wait_for()


def _long_answer(fleet: RunningFleet, number: int) -> int:
    body = {
        "model": "rorqual-tiny-v41",
        "messages": [{"role": "user", "content": f"Count to {number}."}],
        "max_tokens": 1500,
        "ignore_eos": True,
    }
    url = f"{fleet.base_url}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=4 * WAIT_S).status_code


def test_the_fleet_is_shown_and_everything_can_be_reached_by_keyboard(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    ask(page, "Watch this closely. " * 60)  # of more than a block
    page.get_by_role("link", name="Fleet").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Complete.").wait_for()
    for service in ("gateway", "recipe", "router", "prefill", "decode", "kvmeta"):
        page.get_by_role("region", name=service).wait_for()
    for meter in ("KV pages", "Running", "Prompts that hit", "Blocks found"):
        page.get_by_role("meter", name=meter).first.wait_for()
    for fact in ("waiting by bucket lt16k", "waiting by bucket ge256k", "blocks from the store"):
        page.locator("dt", has_text=fact).first.wait_for()
    page.get_by_role("cell", name="decode", exact=True).first.wait_for()


@pytest.mark.parametrize("view", ["chat", "fleet", "requests"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_barrier_is_found(page: Any, view: str, theme: str) -> None:
    axe = pytest.importorskip("axe_core_python.sync_playwright").Axe()
    if view == "chat":
        ask(page, "What is the capital of France?")
    page.goto(page.url.split("#")[0] + f"#/{view}")
    page.get_by_label("Theme").select_option(theme)
    page.locator("main h1:visible, main h1").first.wait_for(state="attached")
    found = axe.run(page)["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not [(one["id"], one["nodes"][0]["html"]) for one in grave]


def test_the_first_paint_comes_at_once(page: Any) -> None:
    """Measured by the browser; the bound is wide, the page is 60 kB."""
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    size = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/console/'))"
        ".reduce((sum, e) => sum + e.decodedBodySize, 0)"
    )
    print(f"first contentful paint after {paint_ms:.0f} ms, {size} bytes")
    assert 0 < size < 100_000
