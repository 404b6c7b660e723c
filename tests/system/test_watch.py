"""`srl watch` in a real browser, beside a run that goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import install
from harness import COMMAND, LIMIT_SECONDS, SMALL, Training, checkpoints, wait_for
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of `srl watch` over this test's folder."""
    command = [sys.executable, "-c", COMMAND, "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a browser; whatever it complains about fails the test."""
    install("chromium")
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page()
        page.set_default_timeout(1000 * LIMIT_SECONDS)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
    assert not complaints


def tab_to(page: Page, name: str) -> None:
    """Goes from element to element by the Tab key until one with this text has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    pytest.fail(f"{name!r} cannot be reached by the keyboard")


def test_a_run_appears_moves_turns_red_recovers_and_obeys(
    start: Callable[..., Training], address: str, page: Page
) -> None:
    page.goto(address)
    assert "token" not in page.url
    page.get_by_text("No runs here yet").wait_for()

    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", "--until", "none", *SMALL,
        "--set", "checkpoint.every_seconds=3600",
    )  # fmt: skip
    page.get_by_role("link", name="run", exact=True).wait_for()
    tab_to(page, "run")
    page.keyboard.press("Enter")
    page.locator("#flow svg .row.good").first.wait_for()
    page.locator("#curves canvas").first.wait_for()
    assert "Bottleneck" in page.locator("#bottleneck").inner_text()

    before = page.locator("#overview dl").inner_text()
    page.wait_for_function(
        "before => document.querySelector('#overview dl').innerText !== before", arg=before
    )

    training.workers()["actor-0"].kill()
    page.locator("#flow svg .row.bad").wait_for()
    page.locator("#workers tr.bad").get_by_text("actor/0").wait_for()
    page.locator("#flow svg .row.bad").wait_for(state="detached")
    assert page.locator("#flow svg").get_by_text(re.compile("1 restart")).count() == 1
    page.get_by_label("Process").select_option("controller.log")
    page.locator("#log").get_by_text("SIGKILL").wait_for()

    number = checkpoints(training.run_dir)
    tab_to(page, "Checkpoint")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    tab_to(page, "Write it")
    page.keyboard.press("Enter")
    page.locator("#said").get_by_text("writes a checkpoint").wait_for()
    wait_for(lambda: checkpoints(training.run_dir) != number, "a checkpoint")

    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    training.check_running()
    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    tab_to(page, "Stop the run")
    page.keyboard.press("Enter")
    assert training.wait() == 130
    page.locator("#state").get_by_text("stopped").wait_for()
    page.locator("#overview").get_by_text("a user asked for it").wait_for()
