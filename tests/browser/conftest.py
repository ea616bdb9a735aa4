"""A real browser: Debian's chromium, another on the path, or playwright's own; without one the tests are skipped."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@pytest.fixture(scope="module")  # while it is open an event loop runs, beside which no other test can start its own
def browser():
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        if not Path(chromium).is_file():
            pytest.skip("no chromium here: apt install chromium, or playwright install chromium")
        unconfined = getattr(os, "geteuid", lambda: 1)() == 0  # chromium's sandbox refuses root
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"] * unconfined + ["--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """`opened(address, width, scheme)`: a page that sees no network; what it asks for or complains of is in `heard`."""
    contexts = []

    def open_page(path, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: page.heard.append(request.url) if request.url != page.url_asked else None)
        page.url_asked = path.resolve().as_uri()
        page.goto(page.url_asked)
        return page

    yield open_page
    for context in contexts:
        context.close()
