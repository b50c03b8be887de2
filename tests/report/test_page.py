"""The report in a real browser: offline, silent, complete, and usable on a phone and in the dark."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from wellorder.report import Metric, Page, headline, render, table_of, verdicts

METRICS = (
    Metric("loss", "training loss"),
    Metric("order_error", "order error", about="how far the order strays"),
    Metric("accuracy", "test accuracy", lower_is_better=False, log=False, percent=True),
)
POLICIES = {
    "RandomReshuffling": 0.1,
    "ShuffleOnce": 0.09,
    "GraB": 0.2,
    "a <b>strange</b> & long policy name": 0.15,
}


def made_up():
    rows = []
    for label, rate in POLICIES.items():
        for seed in range(4):
            draw = np.random.default_rng([seed, round(1000 * rate)])
            for epoch in range(31):
                loss = np.exp(-rate * epoch + 0.1 * draw.standard_normal())
                rows.append({
                    "policy": label, "seed": seed, "epoch": epoch, "loss": loss, "order_error": 1 + 10 * loss,
                    "accuracy": 1 - 0.9 * loss / (1 + loss),
                    "gradients": 1000 * epoch, "seconds": 0.3 * epoch,
                })  # fmt: skip
    return table_of(rows)


def page(table):
    found = verdicts(table, METRICS[0], "RandomReshuffling")
    return Page(
        title="Orders compared",
        subtitle="made up",
        table=table,
        metrics=METRICS,
        baseline="RandomReshuffling",
        headline=headline(found, "RandomReshuffling"),
        verdicts=found,
        command="wellorder compare --task digits",
        notes=["best step size 0.1"],
        how={"Seeds": "0, 1, 2, 3", "Versions": "x" * 400},
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(page(made_up())), encoding="utf-8")
    return path


def curves_shown(browser, chart=0):
    return browser.eval(
        f"document.querySelectorAll('.plot')[{chart}].data"
        ".filter((t) => t.mode === 'lines' && t.visible !== false).map((t) => t.name)"
    )


def drawn(browser, chart=0):
    """How many lines are really on the screen."""
    return browser.eval(
        f"[...document.querySelectorAll('.plot')[{chart}].querySelectorAll('.scatterlayer .js-line')].length"
    )


def test_the_page_holds_no_address_to_load_from(report):
    text = report.read_text(encoding="utf-8")
    head = text[: text.index("<script")] + text[text.index('id="data"') : text.index("<script>")]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", head)
    assert "<b>strange</b>" not in head
    assert "PairGraB" not in head


def test_no_errors_no_requests_and_every_policys_curve(browser, report):
    browser.open(report)
    assert browser.seen("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len(asked) == 1
    for chart in range(len(METRICS)):
        assert curves_shown(browser, chart) == list(POLICIES)
        assert drawn(browser, chart) == len(POLICIES)
    words = browser.eval("document.querySelector('.verdict').innerText")
    assert "GraB" in words
    assert "difference outside the seeds' spread: yes" in words


def test_a_click_hides_a_policy_in_all_charts_and_another_shows_it(browser, report):
    browser.open(report)
    browser.click("[data-policy=GraB]")
    browser.wait("document.querySelector('[data-policy=GraB]').getAttribute('aria-pressed') === 'false'")
    for chart in range(len(METRICS)):
        assert curves_shown(browser, chart) == [name for name in POLICIES if name != "GraB"]
        assert drawn(browser, chart) == len(POLICIES) - 1
    browser.click("[data-policy=GraB]")
    assert curves_shown(browser) == list(POLICIES)


def test_axes_switch_between_log_and_linear_and_between_epochs_and_seconds(browser, report):
    browser.open(report)
    kind = "document.querySelector('.plot').layout.yaxis.type"
    assert browser.eval(kind) == "log"
    browser.click(".controls .segment:last-child button:last-child")
    assert browser.eval(kind) == "linear"
    browser.click(".controls .segment:first-child button:nth-child(3)")
    assert browser.eval("document.querySelector('.plot').data[1].x.at(-1)") == pytest.approx(9.0)
    assert "seconds" in browser.eval("document.querySelector('.plot').layout.xaxis.title.text")


def test_hovering_names_the_policies_and_their_values(browser, report):
    browser.open(report)
    x, y = browser.eval(
        "(() => { const b = document.querySelector('.plot .nsewdrag').getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait("document.querySelector('.plot .hoverlayer')?.textContent.includes('ShuffleOnce')")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_scrolls_sideways_on_a_phone(browser, report, dark):
    browser.open(report, width=390, height=844, dark=dark)
    assert browser.eval("document.documentElement.scrollWidth") == 390
    widest = browser.eval(
        "Math.max(...[...document.querySelectorAll('main *')].map((e) => e.getBoundingClientRect().right))"
    )
    assert widest <= 390


def test_dark_mode_follows_the_system_and_the_button(browser, report):
    light = "getComputedStyle(document.body).backgroundColor"
    browser.open(report)
    first = browser.eval(light)
    browser.open(report, dark=True)
    assert browser.eval(light) != first
    assert browser.eval("document.documentElement.dataset.theme") == "dark"
    browser.click("#theme")
    assert browser.eval(light) == first


def test_screenshots_are_drawn(browser, report, tmp_path):
    folder = Path(os.environ.get("WELLORDER_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for width in (390, 1280):
        for dark in (False, True):
            browser.open(report, width=width, dark=dark)
            path = folder / f"report-{width}-{'dark' if dark else 'light'}.png"
            browser.shot(path)
            assert path.stat().st_size > 20_000
