"""The report in a real browser: offline, silent, complete, and usable on a phone and in the dark."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from wellorder.report import Metric, Page, headline, picture, render, table_of, verdicts
from wellorder.report._table import curves

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
    """Whose lines are really on the screen."""
    lines = f"[...document.querySelectorAll('.plot')[{chart}].querySelectorAll('.line')]"
    return browser.eval(f"{lines}.filter((l) => l.getBBox().width > 50).map((l) => l.dataset.policy)")


def axis_words(browser, chart=0):
    return browser.eval(
        f"[...document.querySelectorAll('.plot')[{chart}].querySelectorAll('text')].map((t) => t.textContent)"
    )


def test_the_page_holds_no_address_to_load_from(report):
    text = report.read_text(encoding="utf-8")
    named = "http://www.w3.org/2000/svg"  # the name of a language, which nobody loads
    assert not re.search(r"(https?:)?//(?=\w)", text.replace(named, ""))
    assert "<b>strange</b>" not in text


def test_the_page_is_small_beside_its_data(report):
    """A library of charts would be 4.8 MB in every report."""
    text = report.read_text(encoding="utf-8")
    data = text[text.index('id="data"') : text.index("</script>")]
    assert len(text) - len(data) < 40_000


def test_no_errors_no_requests_and_every_policys_curve(browser, report):
    browser.open(report)
    assert browser.seen("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len(asked) == 1
    for chart in range(len(METRICS)):
        assert curves_shown(browser, chart) == list(POLICIES)
    words = browser.eval("document.querySelector('.verdict').innerText")
    assert "GraB" in words
    assert "outside the seeds' spread: yes, in its favour" in words


def test_a_click_hides_a_policy_in_all_charts_and_another_shows_it(browser, report):
    browser.open(report)
    browser.click("[data-policy=GraB]")
    browser.wait("document.querySelector('[data-policy=GraB]').getAttribute('aria-pressed') === 'false'")
    for chart in range(len(METRICS)):
        assert curves_shown(browser, chart) == [name for name in POLICIES if name != "GraB"]
    browser.click("[data-policy=GraB]")
    assert curves_shown(browser) == list(POLICIES)


def test_axes_switch_between_log_and_linear_and_between_epochs_and_seconds(browser, report):
    browser.open(report)
    words = axis_words(browser)
    assert {"1", "0.1", "0.01", "epoch", "30"} <= set(words)
    browser.click(".controls .segment:last-child button:last-child")
    words = axis_words(browser)
    assert {"0.2", "0.4", "0.6"} <= set(words)
    assert "0.01" not in words
    browser.click(".controls .segment:first-child button:nth-child(3)")
    words = axis_words(browser)
    assert "seconds of training" in words
    assert max(float(word) for word in words if re.fullmatch(r"\d+", word)) == 8  # of nine seconds


def test_a_linear_axis_leaves_the_first_epochs_out_on_the_page_and_in_the_picture(browser, report):
    browser.open(report)
    table, accuracy = made_up(), METRICS[2]
    (axes,) = picture(table, [accuracy]).axes
    low, high = axes.get_ylim()
    assert low > np.median(curves(table, "GraB", "accuracy")[:, 0])
    told = browser.eval("JSON.parse(document.getElementById('data').textContent).metrics[2].range.linear")
    assert told == pytest.approx([low, high])
    percents = [float(word[:-2]) for word in axis_words(browser, 2) if word.endswith(" %")]
    assert len(percents) > 3
    assert 100 * low <= min(percents) < max(percents) <= 100 * high
    top, bottom, floor = browser.eval(
        "(() => { const p = document.querySelectorAll('.plot')[2];"
        "const b = p.querySelector('.line[data-policy=GraB]').getBBox();"
        "return [b.y, b.y + b.height, [...p.querySelectorAll('.axis')].at(-1).getBBox().y]; })()"
    )
    assert bottom > floor > top  # the line comes from below the axis, where it is cut off


def test_hovering_names_the_policies_and_their_values_the_highest_first(browser, report):
    browser.open(report)
    x, y = browser.eval(
        "(() => { const b = document.querySelector('.plot').getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait("document.querySelector('.tip')?.textContent.includes('ShuffleOnce')")
    rows = browser.eval("[...document.querySelectorAll('.tip:not([hidden]) div')].map((r) => r.innerText)")
    assert [row.split("\n")[0] for row in rows][-1] == "GraB"
    assert "a <b>strange</b> & long policy name" in rows[2]
    epoch = int(browser.eval("document.querySelector('.tip b').textContent").removeprefix("epoch "))
    middle = np.median(curves(made_up(), "GraB", "loss")[:, epoch])
    assert float(rows[-1].split("\n")[1].split(" (")[0]) == pytest.approx(middle, rel=1e-3)


def test_lines_are_dashed_where_colours_are_shared(browser, report):
    browser.open(report)
    looks = browser.eval(
        "[...document.querySelectorAll('.plot')[0].querySelectorAll('.line')]"
        ".map((l) => [getComputedStyle(l).stroke, getComputedStyle(l).strokeDasharray])"
    )
    assert len({tuple(look) for look in looks}) == len(POLICIES)
    chips = browser.eval(
        "[...document.querySelectorAll('.chip .swatch')].map((s) => [getComputedStyle(s).stroke,"
        "getComputedStyle(s.firstChild).strokeDasharray])"
    )
    assert chips == looks


def test_on_paper_the_legend_stands_and_no_card_is_cut(browser, report, tmp_path):
    browser.open(report, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    style = "getComputedStyle(document.querySelector({!r})).{}"
    assert browser.eval(style.format(".legend", "display")) == "flex"
    assert browser.eval(style.format(".controls", "display")) == "none"
    assert browser.eval(style.format(".card", "backgroundColor")) == "rgb(255, 255, 255)"
    cut = "[...document.querySelectorAll('.card')].filter((c) => getComputedStyle(c).breakInside !== 'avoid')"
    assert browser.eval(f"{cut}.length") == 0
    browser.pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", printed)) == 2  # more, if cards were pushed off half-empty pages


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "$x$ ${title}",
    "[/]x",
    "'\"&",
]


def test_hostile_labels_stand_on_the_page_as_they_are(browser, tmp_path):
    rows = [
        {"policy": name, "seed": seed, "epoch": e, "loss": (at + 1) / (e + 1) + seed}
        for at, name in enumerate(HOSTILE) for seed in range(2) for e in range(5)
    ]  # fmt: skip
    table, metric = table_of(rows), Metric("loss", "<i>loss</i> $y$", about="<u>about</u>")
    found = verdicts(table, metric, HOSTILE[0])
    text = {"title": HOSTILE[1], "subtitle": HOSTILE[0], "command": HOSTILE[2], "baseline": HOSTILE[0]}
    made = Page(
        table=table, metrics=[metric], headline=headline(found, HOSTILE[0]), verdicts=found, notes=HOSTILE,
        how={HOSTILE[0]: HOSTILE[1]}, **text,
    )  # fmt: skip
    path = tmp_path / "report.html"
    path.write_text(render(made), encoding="utf-8")
    browser.open(path)
    assert browser.seen("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening") == []
    assert curves_shown(browser) == HOSTILE
    assert browser.eval("[...document.querySelectorAll('.chip')].map((c) => c.textContent)") == HOSTILE
    assert browser.eval("document.querySelectorAll('img, i, u, b b').length") == 0
    assert browser.eval("document.querySelector('h1').textContent") == HOSTILE[1]
    assert browser.eval("document.querySelectorAll('script').length") == 3


def test_runs_that_diverged_leave_a_gap_or_a_word(browser, tmp_path):
    rows = [
        {"policy": name, "seed": 0, "epoch": e, "loss": value(e), "lost": np.nan, "below": -1.0 - e}
        for name, value in (("RR", lambda e: 1 / (e + 1)), ("B", lambda e: np.inf if e == 3 else 2.0 + e))
        for e in range(8)
    ]
    table, metrics = (
        table_of(rows),
        [Metric("loss", "loss"), Metric("lost", "lost"), Metric("below", "below")],
    )
    made = Page("t", "s", table, metrics, "RR", "h", verdicts(table, metrics[0], "RR"), "c")
    path = tmp_path / "report.html"
    path.write_text(render(made), encoding="utf-8")
    browser.open(path)
    assert browser.seen("Runtime.exceptionThrown") == []
    line = "document.querySelector('.line[data-policy=B]').getAttribute('d')"
    assert browser.eval(line).count("M") == 2
    words = browser.eval("[...document.querySelectorAll('.plot')].map((p) => p.textContent)")
    assert "No finite value to show." in words[1]
    assert words[2].startswith("−8−6−4−2")


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
