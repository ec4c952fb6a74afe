"""A snapshot of gapless in PyTorch's own viewer, in a browser: cargo xtask torch-without-gpu --viewer SOURCES sets it up.

The page is the one that PyTorch writes; what it would fetch, its own viewer and d3, is answered from here.
"""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

WHOLE_D3 = "https://localhost/d3.js"


def d3_module():
    """d3's one file as a module, with each of its names exported."""
    text = Path(os.environ["GAPLESS_VIEWER_D3"]).read_text()
    names = sorted(set(re.findall(r"^\s*exports\.(\w+) = ", text, re.MULTILINE)))
    # The file puts its object into `this`, which a module does not have. Some names are the browser's own, such as `window`.
    own = ", ".join(f"d3_{name} = self.d3.{name}" for name in names)
    exported = ", ".join(f"d3_{name} as {name}" for name in names)
    # The event that is handled changes.
    event = "Object.defineProperty(self.d3, 'event', {get: () => d3_event, set: (event) => { d3_event = event; }});"
    return f"(function () {{ {text} }}).call(self);\nlet {own};\n{event}\nexport {{{exported}}};\n"


@pytest.fixture(scope="module")
def page_and_errors():
    headers = {"content-type": "text/javascript", "access-control-allow-origin": "*"}
    viewer, d3, errors = Path(os.environ["GAPLESS_VIEWER"]).read_text(), d3_module(), []

    def answer(route):
        url = route.request.url
        if url.startswith("file:"):
            route.continue_()
        elif url.endswith("/MemoryViz.js"):
            route.fulfill(body=viewer, headers=headers)
        elif url == WHOLE_D3:
            route.fulfill(body=d3, headers=headers)
        elif "d3" in url:
            # Its parts have addresses of their own.
            route.fulfill(body=f"export * from '{WHOLE_D3}';", headers=headers)
        else:
            errors.append(f"the page asks for {url}")
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route("**/*", answer)
        page.goto(Path(os.environ["GAPLESS_VIEWER_PAGE"]).as_uri())
        page.wait_for_selector("polygon")
        yield page, errors
        browser.close()


@pytest.fixture
def show(page_and_errors):
    """Selects one of the viewer's views, and says that nothing went wrong."""
    page, errors = page_and_errors

    def choose(view):
        page.locator("select").nth(1).select_option(view)
        return page

    yield choose
    assert errors == []


def texts_of_shapes(page):
    """Returns the viewer's text for each allocation that it has drawn."""
    shapes = page.locator("polygon:visible").all()
    return [(shape.dispatch_event("mouseover"), page.locator("pre:visible").inner_text())[1] for shape in shapes]


def test_allocations_are_drawn_with_their_stacks(show):
    texts = texts_of_shapes(show("Active Memory Timeline"))
    # In units of MiB, with the frames of the program's own functions.
    for size, function, times in (("40.0MiB", "weights_of_the_model", 1), ("90.0MiB", "one_training_step", 3)):
        of_function = [text for text in texts if size in text and "script.py:" in text and f":{function}" in text]
        assert len(of_function) == times, (size, texts)


def test_events_are_listed_with_their_stacks(show):
    page = show("Allocator State History")
    events = page.locator("pre:visible")
    texts = events.all_inner_texts()
    allocations = [index for index, text in enumerate(texts) if text.startswith("alloc ") and "90.0MiB" in text]
    assert len(allocations) == 3, texts
    events.nth(allocations[1]).dispatch_event("mousedown")
    page.wait_for_function("document.body.innerText.includes('one_training_step')")
    # The blocks that are live at that moment are drawn.
    assert page.locator("rect:visible").count() >= 2


def test_what_is_held_is_drawn(show):
    assert texts_of_shapes(show("Active Cached Segment Timeline")) != []
