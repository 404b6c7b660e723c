"""Takes the pictures of the page that docs/how-to/watch.md shows.

srl watch runs --port 8700
python docs/tools/watch_pictures.py ADDRESS RUN     (the printed address, the name of a run)
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "assets" / "watch"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
PICTURES = {
    "light": {"viewport": {"width": 1100, "height": 760}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 760}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 760}, "color_scheme": "dark", "is_mobile": True},
}


def main(address: str, run: str) -> None:
    """Takes a picture of the list, and one of a run for each way to look at it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, look in PICTURES.items():
            page = browser.new_page(**look)
            page.goto(address)
            page.get_by_role("link", name=run, exact=True).wait_for()
            page.locator(".charts canvas").first.wait_for()
            if name == "light":
                page.screenshot(path=FOLDER / "runs.png")
            page.get_by_role("link", name=run, exact=True).click()
            page.locator("#flow svg .row").first.wait_for()
            page.locator("#curves canvas").first.wait_for()
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
