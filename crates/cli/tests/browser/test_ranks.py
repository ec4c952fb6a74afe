"""The page of `gapless advise --html` for the ranks of a job."""

import pytest

BLOCKS = "".join(f"a {number} 4194304 0\n" for number in range(40))
FREES = "".join(f"f {number}\n" for number in range(0, 40, 2))
GOES_THROUGH = f"# capacity_bytes 178257920\n{BLOCKS}{FREES}"
HOSTILE = "<img src=x onerror=alert(1)>.trace"


@pytest.fixture(scope="session")
def ranks(folder, gapless):
    """Twelve ranks, of which the one with number 10 failed."""
    (folder / "ranks").mkdir()
    names = [f"rank_{rank}.trace" for rank in range(11)] + [HOSTILE]
    for name in names:
        (folder / "ranks" / name).write_text(GOES_THROUGH + ("r 67108864 0\n" if name == "rank_10.trace" else ""))
    path = folder / "ranks.html"
    gapless("advise", *(str(folder / "ranks" / name) for name in names), "--html", str(path))
    return path


def report(page, rank):
    """The report of a rank, which may be hidden."""
    button = page.get_by_role("button", name=f"rank_{rank}.trace", exact=True)
    return button, page.locator(f"#{button.get_attribute('aria-controls')}")


def test_verdict_and_table_are_there(ranks, open_page):
    page = open_page(ranks)
    assert "The odd one is rank_10.trace: it alone failed." in page.inner_text("#verdict")
    rows = page.locator("#ranks tbody tr:visible")
    assert rows.count() == 12
    assert rows.nth(11).inner_text().split("\t")[:3] == ["rank_10.trace odd", "160 MiB", "60"]
    assert page.locator("img").count() == 0 and HOSTILE in page.inner_text("#ranks")


def test_a_click_opens_and_closes_a_report(ranks, open_page):
    page = open_page(ranks)
    button, text = report(page, 10)
    assert not text.is_visible()
    # Anywhere in the row.
    page.locator("#ranks tr", has=button).locator("td").nth(2).click()
    assert text.is_visible() and button.get_attribute("aria-expanded") == "true"
    assert "PyTorch refused a request of 64 MiB at op 60" in text.inner_text()
    # Another one, beside it.
    other, other_text = report(page, 3)
    other.click()
    assert text.is_visible() and other_text.is_visible() and "rank_3:" in other_text.inner_text()
    button.click()
    assert not text.is_visible() and button.get_attribute("aria-expanded") == "false"
    # A click on a report closes none.
    other_text.locator("pre").click()
    assert other_text.is_visible()


def test_rows_are_reached_and_opened_by_keyboard(ranks, open_page):
    page = open_page(ranks)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
    assert reached == [HOSTILE] + [f"rank_{rank}.trace" for rank in range(11)]
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "rank_10.trace", "the last row"
    page.keyboard.press("ArrowUp")
    button, text = report(page, 9)
    for key, opens in [("Enter", True), ("Enter", False), ("Space", True)]:
        page.keyboard.press(key)
        assert text.is_visible() == opens, key
    assert page.evaluate("document.activeElement.textContent") == "rank_9.trace"


def test_verdict_and_table_need_no_javascript(ranks, open_page):
    page = open_page(ranks, java_script_enabled=False)
    assert "The odd one is rank_10.trace" in page.inner_text("#verdict")
    assert page.locator("#ranks tbody tr:visible").count() == 12
    assert page.locator("noscript").inner_text().startswith("Reports are opened with JavaScript")


def test_dark_mode_is_dark(ranks, open_page):
    page = open_page(ranks, color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    page.emulate_media(media="print", color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf()[:4] == b"%PDF"


def test_a_thousand_ranks_stay_usable(folder, gapless, open_page):
    (folder / "many").mkdir()
    names = [str(folder / "many" / f"rank_{rank}.trace") for rank in range(1000)]
    for name in names:
        with open(name, "w") as file:
            file.write(GOES_THROUGH)
    path = folder / "many.html"
    gapless("advise", *names, "--html", str(path), "--setting", "native")
    page = open_page(path)
    button, text = report(page, 999)
    button.click()
    assert text.is_visible() and page.locator("#ranks tbody tr:visible").count() == 1001
