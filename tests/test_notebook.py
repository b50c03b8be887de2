"""What notebooks show of results: short words, escaped tables, and pictures of the right numbers."""

import inspect
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pytest

import wellorder as wo
from wellorder._notebook import html_table
from wellorder.problems import logistic, quadratics

pyplot = pytest.importorskip("matplotlib.pyplot")
EVIL = "<script>alert('$x$ [/]')</script>"


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    pyplot.close("all")


@cache
def run():
    return wo.sgd(quadratics(1000), wo.PairGraB(), step_size=1e-3, epochs=20)


@cache
def comparison():
    pytest.importorskip("pyarrow")
    from wellorder.experiments import Config, compare, problem_task

    policies = {"RR": wo.RandomReshuffling(), EVIL: wo.PairGraB()}
    config = Config(policies=policies, epochs=12, seeds=(0, 1))
    return compare(problem_task(quadratics(50), step_size=2e-3), config, progress=False)


@cache
def simulation():
    torch = pytest.importorskip("torch")
    from wellorder.federated import ClientData, Config, label_shards, simulate

    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    data = ClientData(x, y, label_shards(y, 12))
    return simulate(torch.nn.Linear(4, 2), data, wo.PairGraB(), Config(0.1, epochs=3, cohort=4))


@cache
def report():
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(3, 1)
    loader = DataLoader(TensorDataset(torch.randn(40, 3), torch.randn(40, 1)), batch_size=4, shuffle=True)
    loader = wo.torch.ordered(loader, model)
    for _ in range(2):
        for x, y in loader:
            model.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
    return loader.report()


@cache
def audit():
    return wo.audit(np.arange(200), np.arange(200.0)[:, None], every=10)


RESULTS = {
    "Run": run,
    "Comparison": comparison,
    "Simulation": simulation,
    "Audit": audit,
    "Report": report,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_line_a_table_and_a_picture(name):
    found = RESULTS[name]()
    assert repr(found).startswith(f"{name}: ")
    assert len(repr(found)) < 400
    assert "\n" not in repr(found)
    table = found._repr_html_()
    assert "<script>" not in table
    assert ET.fromstring(table).find(".//table") is not None
    assert len(table) < 4000
    axes = found.plot()
    assert axes.figure in map(pyplot.figure, pyplot.get_fignums())  # so a notebook shows it
    assert axes.get_legend() is not None
    assert axes.get_xlabel()
    axes.figure.draw_without_rendering()
    _, mine = pyplot.subplots()
    assert found.plot(axes=mine) is mine
    with pytest.raises(ValueError, match="axes=3: pass matplotlib axes"):
        found.plot(axes=3)


def test_a_run_draws_its_series():
    found = run()
    assert repr(found) == (
        "Run: PairGraB(rule=Deterministic(), reorders=1), 20 epochs of 1000 units, step size 0.001, seed 0; "
        f"distance to the minimiser from {found.distance[0]:.3g} to {found.distance[-1]:.3g}"
    )
    axes = found.plot("order_error", label="$mine$")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), found.order_error)
    assert axes.lines[0].get_label() == r"\$mine\$"
    assert axes.get_yscale() == "log"
    np.testing.assert_array_equal(found.plot().lines[0].get_ydata(), found.distance)
    rows = ET.fromstring(found._repr_html_()).findall(".//tbody/tr")
    assert [row[0].text for row in rows] == ["0", "4", "8", "11", "15", "19"]
    assert float(rows[-1][1].text) == pytest.approx(found.distance[-1], rel=1e-3)


def test_a_run_without_a_known_minimiser_shows_its_gradient():
    x = np.random.default_rng(0).standard_normal((30, 2))
    problem = logistic(x, x[:, 0] > 0, l2=0.1)
    found = wo.sgd(problem, wo.RandomReshuffling(), step_size=0.1, epochs=3)
    known = np.isfinite(found.distance).any()
    name = "distance" if known else "gradient_norm"
    np.testing.assert_array_equal(found.plot().lines[0].get_ydata(), getattr(found, name))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run().plot("speed"), "quantity='speed': pass 'distance', 'gradient_norm'"),
        (lambda: run().plot(np.zeros(3)), "quantity="),
        (lambda: run().plot(label=3), "label=3: pass a line of text"),
        (lambda: comparison().plot("speed"), "metric='speed': pass 'excess_loss'"),
        (lambda: comparison().plot(x="hours"), "x='hours': pass 'epoch', 'gradients' or 'seconds'"),
        (lambda: simulation().plot("speed"), "quantity='speed': pass 'epoch'"),
        (lambda: simulation().plot(x="hours"), "x='hours': pass 'round' or 'epoch'"),
    ],
)
def test_what_cannot_be_drawn_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


HOSTILE = [
    None,
    True,
    0,
    -1,
    np.nan,
    10**400,
    "x",
    "\0",
    b"x",
    [],
    {},
    (),
    object(),
    np.zeros(3),
    np.array("a"),
]


@pytest.mark.parametrize("name", RESULTS)
def test_hostile_arguments_of_plot_get_a_cure_or_an_answer(name):
    found = RESULTS[name]()
    for argument in inspect.signature(found.plot).parameters:
        for value in HOSTILE:
            said = ""
            try:
                found.plot(**{argument: value})
            except ValueError as error:
                said = str(error)
            assert not said or (f"{argument}=" in said and "pass " in said), said
            pyplot.close("all")


def test_a_comparison_shows_every_label_as_it_is():
    found = comparison()
    assert EVIL in repr(found)
    cells = [cell.text for cell in ET.fromstring(found._repr_html_()).findall(".//tbody/tr/td")]
    assert EVIL in cells
    assert "baseline" in cells
    axes = found.plot(x="seconds")
    axes.figure.draw_without_rendering()  # a formula that is none would fail here
    assert [text.get_text().replace(r"\$", "$") for text in axes.get_legend().get_texts()] == ["RR", EVIL]
    assert axes.get_xlabel() == "seconds of training"


def test_an_audit_draws_its_curves_beside_a_shuffle_s():
    found = audit()
    axes = found.plot(label="mine")
    own, shuffled = axes.lines
    assert list(own.get_ydata()) == [0.0, *found.curves[0]]
    assert list(shuffled.get_ydata()) == [0.0, *found.shuffle_curve]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mine", "a full shuffle"]
    other = found.plot(axes=axes, label="other")
    assert [text.get_text() for text in other.get_legend().get_texts()] == ["mine", "a full shuffle", "other"]
    assert other.lines[2].get_color() != own.get_color()
    assert found.sentence in ET.fromstring(found._repr_html_()).find(".//b").text


def test_a_report_draws_what_was_observed():
    found = report()
    assert list(found.plot().lines[0].get_ydata()) == list(found.order_error)
    assert "ms an observed step" in found._repr_html_()
    assert str(found).splitlines()[2].startswith("where        epoch ")


def test_tables_take_no_text_for_html():
    made = ET.fromstring(html_table(["<b>", "x & y"], [[EVIL, 1.23456789], ["a", 3]], title=EVIL))
    assert [cell.text for cell in made.findall(".//td")] == [EVIL, "1.235", "a", "3"]
    assert [cell.text for cell in made.findall(".//th")] == ["<b>", "x & y"]


def test_without_matplotlib_the_extra_is_named_and_words_still_work():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import numpy as np, wellorder as wo\n"
        "found = wo.audit(np.arange(20), np.arange(20.0)[:, None], every=5)\n"
        "assert 'shuffle' in found._repr_html_()\n"
        "found.plot()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("Audit.plot needs matplotlib: pip install 'wellorder[experiments]'")
