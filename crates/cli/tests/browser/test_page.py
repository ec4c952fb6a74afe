"""The page of `gapless advise --html` for one file, and that of `gapless replay --html`."""

import os
import pathlib
import pickle

import pytest

SCREENSHOTS = os.environ.get("GAPLESS_SCREENSHOTS")
FAILED_OP = "1347"


@pytest.fixture(scope="session")
def advice(folder, gapless):
    path = folder / "advise.html"
    gapless("advise", "traces/oom/oom_10.trace.gz", "--html", str(path))
    return path


@pytest.fixture(scope="session")
def with_stacks(folder, gapless):
    """The page of a snapshot with stacks: 8 blocks, and a request that is refused."""
    frames = [
        {"name": "at::_ops::mm::call(at::Tensor const&)", "filename": "/x/lib/libtorch_cpu.so", "line": 7},
        {"name": "linear", "filename": "/x/site-packages/torch/nn/functional.py", "line": 125},
        {"name": "step<b>", "filename": "/home/me/train.py", "line": 12},
    ]
    base, mib = 0x7F0000000000, 1 << 20
    block = [{"address": base + 64 * mib * at, "size": 64 * mib, "state": "active_allocated"} for at in range(8)]
    trace = [{"action": "segment_alloc", "addr": base, "size": 512 * mib, "stream": 0, "frames": frames}]
    for one in block:
        trace.append({"action": "alloc", "addr": one["address"], "size": 64 * mib, "stream": 0, "frames": frames})
    trace.append({"action": "oom", "device_free": 100 * mib, "size": 256 * mib, "stream": 0, "frames": frames})
    segment = {"device": 0, "address": base, "total_size": 512 * mib, "stream": 0, "blocks": block}
    snapshot = folder / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}, protocol=4))
    path = folder / "stacks.html"
    gapless("advise", str(snapshot), "--html", str(path))
    return path


@pytest.fixture(scope="session")
def early(folder, gapless):
    """The page of a long run that fails at its beginning, on 20 streams."""
    trace = folder / "early.trace"
    with trace.open("w") as file:
        file.write("# capacity_bytes 67108864\n")
        for stream in range(1, 21):
            file.write(f"a {stream} {stream * 1000} {stream}\n")
        file.write("a 100 41943040 0\nf 100\n")
        for number in range(1000, 60_000):
            file.write(f"a {number} 4096 0\nf {number}\n")
    path = folder / "early.html"
    gapless("advise", str(trace), "--html", str(path), "--setting", "native", "--setting", "gapless")
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
    assert "PyTorch refused a request of 1.93 GiB at op 1,347" in page.inner_text("#happened")
    assert "the RTX 4070" in page.inner_text("#fits")
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


def test_the_wheel_scrolls_unless_a_key_is_held(advice, open_page):
    page = open_page(advice)
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 100)
    whole = shown(page)
    page.mouse.wheel(0, 100)
    wait_until(page, "() => window.scrollY > 0")
    assert shown(page) == whole
    page.mouse.wheel(0, -100)
    wait_until(page, "() => window.scrollY === 0")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    wait_until(page, "() => document.getElementById('chart').dataset.from !== '0'")
    page.keyboard.up("Control")
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


def test_streams_beyond_the_eighth_are_one_band(early, open_page):
    page = open_page(early)
    page.select_option("#view", "streams")
    assert "live, 13 other streams" in page.inner_text("#chart-legend")
    assert page.locator("#chart-legend li").count() == 10


def test_an_early_failure_is_seen_op_by_op(early, open_page):
    page = open_page(early)
    assert "would refuse a request of 40 MiB at op 20" in page.inner_text("#happened")
    page.focus("#chart")
    before = picture(page, "chart")
    page.keyboard.press("f")
    assert picture(page, "chart") != before
    near = shown(page)
    assert near[0] == 0 and near[1] < 1000 and near[2] == "20"
    # Each op has columns of its own: 20 steps to the failure, over a tenth of the picture.
    steps = page.evaluate(
        """() => {
            const [chart, context] = [document.getElementById("chart"), document.getElementById("chart").getContext("2d")];
            const ratio = chart.width / chart.clientWidth;
            const tops = [];
            for (let x = 78; x < 150; x += 1) {
                const column = context.getImageData(Math.round(x * ratio), 0, 1, chart.height).data;
                let top = 0;
                const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--unused").trim()
                    .match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
                for (let y = 0; y < chart.height; y += 1) {
                    if (column[4 * y] === red && column[4 * y + 1] === green && column[4 * y + 2] === blue) { top = y; break; }
                }
                tops.push(top);
            }
            return new Set(tops).size;
        }"""
    )
    assert steps > 4, steps
    page.click("#all")
    page.click("#failure")
    assert shown(page)[:2] == near[:2]


def test_maps_beside_each_other_have_cells_of_one_size(advice, early, open_page):
    for path in (advice, early):
        page = open_page(path)
        for moment in ("Home", "End", "f"):
            page.focus("#chart")
            page.keyboard.press(moment)
            maps = [page.locator(f"#map-{which}").evaluate("(map) => ({ ...map.dataset })") for which in ("first", "second")]
            cells = {(one["cellBytes"], one["edge"]) for one in maps if one["op"]}
            assert len(cells) <= 1, (path.name, moment, cells)


def test_every_block_shows_its_stack(with_stacks, open_page):
    page = open_page(with_stacks)
    page.hover("#map-first", position={"x": 4, "y": 4})
    assert "The block there: 64.00 MiB, allocated by op 0 on stream 0" in page.inner_text("#block")
    frames = page.locator("#block li").all_inner_texts()
    assert frames[2] == "step<b> (/home/me/train.py:12)" and len(frames) == 3
    # The keys go through the cells, to the other blocks.
    page.focus("#map-first")
    found = set()
    for _ in range(3000):
        page.keyboard.press("ArrowRight")
        text = page.inner_text("#block .found") if page.locator("#block .found").count() else ""
        found.add(text)
        if any("op 7 " in text for text in found):
            break
    assert {f"op {op} " for op in range(8)} == {text[text.index("op ") : text.index("on stream")] for text in found if text}
    # Holders have theirs without a script.
    page.click("#holders summary")
    assert "libtorch_cpu.so" in page.inner_text("#holders .stack")


def test_the_ops_around_the_failure_are_listed_with_their_stacks(with_stacks, open_page):
    page = open_page(with_stacks)
    rows = page.locator("#events tbody tr")
    assert rows.count() == 9
    assert page.inner_text("#events tr.moment").split() [:4] == ["8", "refused", "256", "MiB"]
    assert "step<b> (/home/me/train.py:12), in aten::mm" in page.inner_text("#events tr.moment")
    rows.nth(0).hover()
    assert "at::_ops::mm::call" in page.inner_text("#event")
    page.focus("#events-box")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#event").startswith("1 · alloc")


def test_the_page_says_without_a_script_what_the_text_says(advice, browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(advice.as_uri())
    assert "python -m gapless.torch" in page.inner_text("#verdict") and "RTX 4070" in page.inner_text("#fits")
    for table, rows in (("policies", 10), ("holders", 10), ("rest", 5)):
        assert page.locator(f"#{table} tbody tr").count() == rows and page.is_visible(f"#{table}")
    assert not page.is_visible("#chart") and page.is_visible("noscript")
    page.close()


def test_recordings_of_others_are_called_theirs(folder, open_page, gapless):
    log = folder / "log.csv"
    log.write_text(
        "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n1,3,allocate failure,(nil),104857600,0x0\n"
    )
    path = folder / "rmm.html"
    gapless("advise", str(log), "--device", "64MiB", "--html", str(path))
    page = open_page(path)
    assert "RMM refused a request of 100 MiB" in page.inner_text("#happened")


CONTRAST = """() => {
    const style = getComputedStyle(document.documentElement);
    const luminance = (name) => {
        const parts = style.getPropertyValue(`--${name}`).trim().match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16) / 255);
        const [red, green, blue] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const contrast = (one, two) => {
        const [low, high] = [luminance(one), luminance(two)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const beside = [["live", "unused"], ["live", "paper"], ["unused", "paper"], ["unreached", "paper"], ["grid", "paper"],
        ["limit", "paper"], ["other", "paper"], ["ink", "paper"]];
    const low = beside.filter(([one, two]) => contrast(one, two) < 3).map(([one, two]) => `${one}/${two} ${contrast(one, two)}`);
    if (contrast("faint", "paper") < 4.5 || contrast("faint", "panel") < 4.5) low.push("faint");
    return low;
}"""
# What does not fit the page, and cells whose text has lines of a few letters.
NARROW = """() => {
    const wide = [...document.querySelectorAll("body *")].filter((element) =>
        element.getBoundingClientRect().right > window.innerWidth + 1 && !element.closest(".scroll, thead"));
    const texts = [...document.querySelectorAll("td > span, p, pre, figcaption")].filter((element) =>
        element.getClientRects().length > 0 && element.innerText.length > 8);
    const thin = texts.filter((element) => element.getBoundingClientRect().width < 48);
    return [...wide, ...thin].map((element) => element.outerHTML.slice(0, 100));
}"""


@pytest.mark.parametrize("media", ["light", "dark", "print"])
@pytest.mark.parametrize("width", [390, 800, 1440])
def test_it_can_be_read_on_every_screen(advice, with_stacks, early, open_page, width, media):
    for path in (advice, with_stacks, early):
        page = open_page(path, color_scheme="dark" if media == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        if media == "print":
            page.emulate_media(media="print")
            page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(NARROW) == []
        assert page.evaluate(CONTRAST) == []
        for canvas in ("chart", "map-first", "map-second"):
            assert colours(page, canvas) > 1, canvas
        for table in ("policies", "holders", "rest", "events"):
            assert page.is_visible(f"#{table}")


def test_every_control_is_reached_by_tab_and_shows_it(advice, open_page):
    page = open_page(advice)
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
    controls = ["first", "second", "view", "earlier", "later", "in", "out", "failure", "all"]
    assert reached == [*controls, "chart", "map-first", "map-second", "events-box"]


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


def test_a_replay_has_a_page(folder, open_page, gapless):
    path = folder / "replay.html"
    gapless("replay", "traces/oom/oom_10.trace.gz", "--json", "--html", str(path))
    page = open_page(path)
    assert page.inner_text("h1") == "oom_10: replay"
    assert page.locator("#policies tbody tr").count() == 2
    assert "caching" in page.inner_text("#map-first-text") and "gapless" in page.inner_text("#map-second-text")


def test_a_hostile_trace_runs_nothing(folder, open_page, gapless):
    trace = folder / "<img src=x onerror=alert(1)>.trace"
    trace.write_text("a 1 4194304 0\na 2 100 0\nf 1\n")
    path = folder / "hostile.html"
    gapless("advise", str(trace), "--html", str(path), "--setting", "native")
    page = open_page(path)
    assert "<img" in page.inner_text("h1")
    assert page.locator("img").count() == 0


def test_a_million_ops_stay_usable(folder, open_page, gapless):
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
