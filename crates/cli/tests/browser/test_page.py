"""The page of `gapless advise --html` for one file, and that of `gapless replay --html`."""

import os
import pathlib

import pytest

SCREENSHOTS = os.environ.get("GAPLESS_SCREENSHOTS")
FAILED_OP = "1347"


@pytest.fixture(scope="session")
def advice(folder, gapless):
    path = folder / "advise.html"
    gapless("advise", "traces/oom/oom_10.trace.gz", "--html", str(path))
    return path


def colours(page, canvas):
    """The number of different colours in a canvas."""
    return page.evaluate(
        """(id) => {
            const canvas = document.getElementById(id);
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(pixels.buffer)).size;
        }""",
        canvas,
    )


def picture(page, canvas):
    return page.evaluate("(id) => document.getElementById(id).toDataURL()", canvas)


def shown(page):
    data = page.locator("#chart").evaluate("(chart) => ({ ...chart.dataset })")
    return float(data["from"]), float(data["to"]), data["moment"]


def wait_until(page, condition):
    """Waits for what follows an event a frame later. The page's policy forbids `wait_for_function`, which evaluates."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def screenshot(page, name, **options):
    if SCREENSHOTS:
        path = pathlib.Path(SCREENSHOTS) / f"{name}.png"
        page.screenshot(path=path, **options)
        assert path.stat().st_size < 200_000


def test_everything_is_drawn(advice, open_page):
    page = open_page(advice)
    for canvas in ("chart", "map-first", "map-second"):
        assert colours(page, canvas) > 2, canvas
    assert "1.93 GiB at op 1,347" in page.inner_text("#happened")
    assert "python -m gapless.torch" in page.inner_text("#verdict")
    assert page.locator("#policies tbody tr").count() == 10
    assert page.locator("#holders tbody tr").count() == 10
    assert "native" in page.inner_text("#map-first-text") and "gapless" in page.inner_text("#map-second-text")
    # It begins with the failure.
    assert shown(page)[2] == FAILED_OP
    screenshot(page, "advise")
    # One op later, the request that native refused is served.
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    ops = [page.get_attribute(f"#map-{which}", "data-op") for which in ("first", "second")]
    assert ops == [FAILED_OP, "1348"]
    screenshot(page, "advise-maps", clip=page.locator("section:has(#map-first)").bounding_box(), full_page=True)


def test_keys_zoom_and_move(advice, open_page):
    page = open_page(advice)
    page.focus("#chart")
    whole = shown(page)
    page.keyboard.press("+")
    near = shown(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.keyboard.press("Shift+ArrowLeft")
    assert shown(page)[0] < near[0]
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert shown(page) == whole
    page.keyboard.press("ArrowLeft")
    assert shown(page)[2] != whole[2]
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    last = shown(page)[2]
    page.keyboard.press("Home")
    assert int(shown(page)[2]) < int(last)
    for _ in range(40):
        page.keyboard.press("+")
    near = shown(page)
    assert near[1] > near[0] and colours(page, "chart") > 2


def test_the_wheel_zooms_at_the_pointer(advice, open_page):
    page = open_page(advice)
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 100)
    whole = shown(page)
    page.mouse.wheel(0, -100)
    wait_until(page, "() => document.getElementById('chart').dataset.from !== '0'")
    near = shown(page)
    assert near[1] - near[0] < whole[1] - whole[0]
    assert near[0] - whole[0] < whole[1] - near[1]


def test_a_click_changes_both_maps(advice, open_page):
    page = open_page(advice)
    before = [picture(page, canvas) for canvas in ("map-first", "map-second")]
    box = page.locator("#chart").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 3, box["y"] + 100)
    after = [picture(page, canvas) for canvas in ("map-first", "map-second")]
    assert before[0] != after[0] and before[1] != after[1]
    ops = [page.get_attribute(f"#map-{which}", "data-op") for which in ("first", "second")]
    assert ops[0] == ops[1] == shown(page)[2] != FAILED_OP
    assert f"{int(ops[0]):,}" in page.inner_text("#moment")


def test_policies_and_streams_can_be_switched(advice, open_page):
    page = open_page(advice)
    chart, map_ = picture(page, "chart"), picture(page, "map-first")
    page.select_option("#first", label="max_split_size_mb:64")
    assert picture(page, "chart") != chart and picture(page, "map-first") != map_
    assert page.get_attribute("#map-first", "data-policy") == "max_split_size_mb:64"
    page.select_option("#view", "streams")
    assert "stream 0" in page.inner_text("#chart-legend")
    assert colours(page, "chart") > 2


def test_every_control_is_reached_by_tab_and_shows_it(advice, open_page):
    page = open_page(advice)
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
    assert reached == ["first", "second", "view", "earlier", "later", "in", "out", "all", "chart"]


def test_dark_mode_is_dark(advice, open_page):
    corner = """() => {
        const pixel = document.getElementById("chart").getContext("2d").getImageData(1, 1, 1, 1).data;
        return pixel[0] + pixel[1] + pixel[2];
    }"""
    light, dark = open_page(advice, color_scheme="light"), open_page(advice, color_scheme="dark")
    assert light.evaluate(corner) > 700 and dark.evaluate(corner) < 150
    assert colours(dark, "chart") > 2
    dark.emulate_media(color_scheme="light")
    wait_until(dark, f"() => ({corner})() > 700")
    dark.emulate_media(color_scheme="dark")
    wait_until(dark, f"() => ({corner})() < 150")
    screenshot(dark, "advise-dark")


def test_print_is_light_and_has_no_controls(advice, open_page):
    page = open_page(advice, color_scheme="dark")
    assert page.pdf()[:4] == b"%PDF"
    page.emulate_media(media="print")
    assert not page.is_visible("#first") and page.is_visible("#chart") and page.is_visible("#policies")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_a_replay_has_a_page(folder, gapless, open_page):
    path = folder / "replay.html"
    gapless("replay", "traces/oom/oom_10.trace.gz", "--json", "--html", str(path))
    page = open_page(path)
    assert page.inner_text("h1") == "oom_10: replay"
    assert page.locator("#policies tbody tr").count() == 2
    assert "caching" in page.inner_text("#map-first-text") and "gapless" in page.inner_text("#map-second-text")


def test_a_hostile_trace_runs_nothing(folder, gapless, open_page):
    trace = folder / "<img src=x onerror=alert(1)>.trace"
    trace.write_text("a 1 4194304 0\na 2 100 0\nf 1\n")
    path = folder / "hostile.html"
    gapless("advise", str(trace), "--html", str(path), "--setting", "native")
    page = open_page(path)
    assert "<img" in page.inner_text("h1")
    assert page.locator("img").count() == 0


def test_a_million_ops_stay_usable(folder, gapless, open_page):
    trace = folder / "long.trace"
    with trace.open("w") as file:
        file.write("# capacity_bytes 8589934592\n")
        for number in range(500_000):
            file.write(f"a {number} {512 + number * 7919 % 1_000_000} {number % 3}\n")
            if number >= 3000:
                file.write(f"f {number - 3000}\n")
    path = folder / "long.html"
    gapless("advise", str(trace), "--html", str(path), "--setting", "native", "--setting", "gapless")
    assert path.stat().st_size <= 5 << 20
    page = open_page(path)
    assert colours(page, "chart") > 2
    page.focus("#chart")
    for key in ("+", "+", "ArrowLeft", "ArrowLeft", "Shift+ArrowRight", "0"):
        page.keyboard.press(key)
    assert shown(page)[:2] == (0, 997_000)
