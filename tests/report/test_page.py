"""The page in a real headless Chromium: drawn, silent, alone, and of use."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import Browser

pytestmark = pytest.mark.xdist_group("report")  # one comparison and one browser for all

FIGURES = ["final", "curves", "efficiency", "target", "gain", "clients", "tiers", "spent", "loss", "holdings"]
SHOWN = "document.querySelector('#s0-{} .plot:not([hidden])')"

BAD = """<!doctype html><title>x</title><img src="http://127.0.0.1:9/x.png">
<script>console.error("oh"); setTimeout(() => { undefinedThing(); }, 0);</script>"""

DRAWN = """Array.from(document.querySelectorAll('figure')).map(f => {
  const plots = Array.from(f.querySelectorAll('.plot')).filter(p => !p.hidden);
  const svg = plots[0].querySelector('svg'), box = svg.getBoundingClientRect();
  const marks = Array.from(svg.querySelectorAll('.spot')).map(m => m.getBoundingClientRect());
  const inside = m => m.x >= box.x - 1 && m.right <= box.right + 1 && m.y >= box.y - 1 && m.bottom <= box.bottom + 1;
  return {id: f.id, plots: plots.length, wide: box.width, tall: box.height, marks: marks.length,
          inside: marks.every(inside), words: svg.querySelectorAll('text').length,
          title: svg.querySelector('title').textContent, said: svg.querySelector('desc').textContent};
})"""


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def test_what_is_wrong_with_a_page_is_heard(browser: Browser, tmp_path: Path) -> None:
    """The control: a page that complains and fetches is seen to do so."""
    (tmp_path / "bad.html").write_text(BAD)
    browser.open(tmp_path / "bad.html")
    assert any("oh" in c for c in browser.complaints) and any("undefinedThing" in c for c in browser.complaints)
    assert "http://127.0.0.1:9/x.png" in browser.asked


def test_all_plots_are_drawn_and_nothing_is_said_or_fetched(opened: Browser, page: Path) -> None:
    drawn = opened.js(DRAWN)
    assert [f["id"] for f in drawn] == [f"s0-{name}" for name in FIGURES]
    for f in drawn:
        assert f["plots"] == 1 and f["wide"] > 500 and f["tall"] > 50, f["id"]
        assert f["marks"] > 3 and f["inside"] and f["words"] > 5, f["id"]
        assert f["title"] and "Population:" in f["said"]
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [page.as_uri()]


def test_every_choice_of_axes_shows_one_plot_of_these_axes(opened: Browser) -> None:
    seen = set()
    for x in range(5):
        for y in range(3):
            opened.js(f"document.querySelectorAll('#s0-curves button[data-x]')[{x}].click()")
            opened.js(f"document.querySelectorAll('#s0-curves button[data-y]')[{y}].click()")
            assert opened.js("document.querySelectorAll('#s0-curves .plot:not([hidden])').length") == 1
            seen.add(opened.js(f"{SHOWN.format('curves')}.querySelector('title').textContent"))
    assert len(seen) == 15
    assert "Accuracy against cost: global model, joules" in seen
    assert opened.js("document.querySelectorAll('#s0-curves button[aria-pressed=true]').length") == 2


def test_a_name_in_a_legend_hides_its_method_in_all_figures_and_shows_it_again(opened: Browser) -> None:
    key = f"{SHOWN.format('curves')}.querySelectorAll('.key')[2]"
    hidden = "document.querySelectorAll('#s0 .off').length"
    name = opened.js(f"{key}.getAttribute('aria-label')")
    assert name == "fedspu" and opened.js(hidden) == 0
    opened.js(f"{key}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert opened.js(f"{key}.getAttribute('aria-pressed')") == "false"
    assert opened.js(f"getComputedStyle({SHOWN.format('tiers')}.querySelector('[data-s=\"2\"]')).display") == "none"
    opened.js(f"{key}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true}}))")
    assert opened.js(hidden) == 0 and opened.js(f"{key}.getAttribute('aria-pressed')") == "true"


def test_a_marker_says_its_value_under_the_pointer(opened: Browser) -> None:
    spot = f"{SHOWN.format('curves')}.querySelector('.spot')"
    opened.js(f"{spot}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    place = opened.js(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({spot}.getBoundingClientRect())")
    opened.tell("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    assert opened.js("!document.getElementById('tip').hidden")
    assert opened.js("document.getElementById('tip').textContent") == opened.js(f"{spot}.getAttribute('aria-label')")
    opened.tell("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert opened.js("document.getElementById('tip').hidden")


def test_a_table_is_copied_as_plain_text(opened: Browser) -> None:
    opened.js("document.querySelector('#s0-final details.table').open = true")
    button = "document.querySelector('#s0-final .copy')"
    opened.js(f"{button}.focus(), {button}.click()")
    opened.js("new Promise(done => setTimeout(done, 200))")
    assert opened.js(f"{button}.parentNode.querySelector('span').textContent") == "copied"
    opened.js(
        "document.body.append(Object.assign(document.createElement('textarea'), {id: 'paste'})), "
        "document.getElementById('paste').focus()"
    )
    opened.tell("Input.dispatchKeyEvent", type="keyDown", key="v", code="KeyV", modifiers=2, commands=["paste"])
    pasted = opened.js("document.getElementById('paste').value")
    told = opened.js("document.getElementById('s0-final-text').textContent")
    assert pasted.splitlines() == told.splitlines()  # a selection is copied without the end of its last line
    assert told.startswith("method\tseeds\tmean\t") and told.count("\n") == 5


def test_the_page_fits_a_phone_turns_dark_and_prints_without_its_buttons(opened: Browser) -> None:
    opened.tell("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=True)
    assert opened.js("document.documentElement.scrollWidth") <= 380
    opened.tell("Emulation.clearDeviceMetricsOverride")
    ink = "getComputedStyle(document.querySelector('.plot svg text')).fill"
    light = opened.js(ink)
    opened.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert opened.js(ink) != light
    opened.tell("Emulation.setEmulatedMedia", media="print", features=[])
    assert opened.js("getComputedStyle(document.querySelector('nav')).display") == "none"
    for button in (".bars", ".save"):
        assert opened.js(f"getComputedStyle(document.querySelector('{button}')).display") == "none"
    opened.tell("Emulation.setEmulatedMedia", media="", features=[])
    assert opened.complaints == []
