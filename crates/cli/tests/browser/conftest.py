"""The pages of `gapless advise --html` and `gapless replay --html` in a headless Chromium. `cargo xtask test-page` calls this.

GAPLESS names the program, CHROMIUM the browser. With GAPLESS_SCREENSHOTS, pictures are written to that folder.
"""

import os
import pathlib
import subprocess

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).parents[4]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="session")
def gapless():
    """Runs the program; exit code 3 says that a policy ran out of memory."""

    def run(*arguments):
        done = subprocess.run([os.environ["GAPLESS"], *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr

    return run


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a page. At the end there must have been no error, and no request but the one for the file."""
    opened = []

    def open_one(path, **options):
        page = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        said, requests = [], []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        opened.append((page, path, said, requests))
        return page

    yield open_one
    for page, path, said, requests in opened:
        page.close()
        assert said == []
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
