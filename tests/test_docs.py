"""The documentation says what is true: its examples run, its tables are whole, its files exist."""

import ast
import doctest
import importlib.util
import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

import wellorder
from wellorder.problems import quadratics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NEEDS = {
    "devices.md": "transformers",
    "torch.md": "torch",
    "shards.md": "torch",
    "federated.md": "torch",
    "flower.md": "flwr",
    "compare.md": "torch",
}
"""Pages whose examples need a package that not everybody installs."""

# pytest's --doctest-glob would take a block's closing fence for expected output; so blocks are cut out here.
BLOCK = re.compile(r"^```(?:python|pycon)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples_of(page: Path) -> list[doctest.Example]:
    text, found = page.read_text(), []
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        for example in doctest.DocTestParser().get_examples(block[1], page.name):
            example.lineno += line
            found.append(example)
    return found


def is_all(node: ast.stmt) -> bool:
    """Whether a statement says what a module exports."""
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def table_rows(heading: str) -> dict[str, str]:
    """The rows of the table under a heading of paper-to-code.md, by the number in their first cell."""
    text = (DOCS / "paper-to-code.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {row[1]: row[0] for row in re.finditer(r"^\| (\d+) \|.*$", section, re.MULTILINE)}


@pytest.mark.parametrize("page", [page for page in PAGES if examples_of(page)], ids=lambda page: page.stem)
def test_every_example_on_the_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    if page.name == "devices.md":  # trainers make folders, and tell of themselves and of missing accelerators
        monkeypatch.chdir(tmp_path)
        warnings.simplefilter("ignore")
    test = doctest.DocTest(examples_of(page), {"__name__": page.stem}, page.name, str(page), 0, None)
    output = []
    failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=output.append)
    assert not failed, "".join(output)


@pytest.fixture(scope="module")
def formulas():
    spec = importlib.util.spec_from_file_location("formulas", DOCS / "extensions" / "formulas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tex", "shown"),
    [
        (r"s \leftarrow s + \epsilon c", "s ← s + εc"),
        (r"\bar\phi_q^2 \le N\varsigma", "φ̄<sub>q</sub><sup>2</sup> ≤ Nς"),
        (r"\sum_{i<n} z_{\pi(i)}", "Σ<sub>i&lt;n</sub>z<sub>π(i)</sub>"),
        (r"\Big\|x\Big\|_\infty", "‖x‖<sub>∞</sub>"),
        (r"\frac1{cT}", '<span class="frac"><span>1</span><span>cT</span></span>'),
    ],
)
def test_formulas_are_shown_without_javascript(formulas, tex, shown):
    assert formulas.formula(tex) == shown


def test_an_unknown_command_in_a_formula_is_named(formulas):
    with pytest.raises(ValueError, match=r"\\nosuch in the formula"):
        formulas.formula(r"a \nosuch b")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("‖x_q − x*‖ and x*", r"‖x<sub>q</sub> − x\*‖ and x\*"),
        ("ΣA_i·φ̄_{q−i}², max_n", "ΣA<sub>i</sub>·φ̄<sub>q−i</sub>², max<sub>n</sub>"),
        ("step_size `x_0` order_error", "step_size `x_0` order_error"),
        ("x_0, r_0\n    from x_0", "x_0, r_0\n    from x<sub>0</sub>"),
    ],
)
def test_plain_symbols_are_kept_from_markdown_and_names_are_left_alone(formulas, text, shown):
    assert formulas.plain(text) == shown


@pytest.mark.parametrize(("heading", "count"), [("The inventory", 28), ("Slips in the text", 15)])
def test_every_row_of_the_paper_is_on_the_page_once(heading, count):
    assert list(table_rows(heading)) == [str(number) for number in range(1, count + 1)]


def test_every_inventory_row_names_a_file_or_is_marked_planned():
    rows = table_rows("The inventory").items()
    assert [number for number, row in rows if "`src/" not in row and "planned" not in row] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_the_page_names_exists(page):
    text = page.read_text()
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]*)`", text)
    linked = [link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) if page.parent == ROOT]
    assert [path for path in named + linked if not (ROOT / path).exists()] == []


def test_every_name_in_the_inventory_exists():
    for row in table_rows("The inventory").values():
        for path in re.findall(r"`(wellorder(?:\.\w+)+)`", row.split("planned")[0]):
            module, _, name = path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), path


@pytest.mark.parametrize(
    ("shown", "policy"),
    [
        ("RandomReshuffling", wellorder.RandomReshuffling()),
        ("ShuffleOnce", wellorder.ShuffleOnce()),
        ("FlipFlop", wellorder.FlipFlop()),
        ("GraB", wellorder.GraB()),
        ("PairGraB", wellorder.PairGraB()),
        ("Herding(passes=8)", wellorder.Herding(passes=8)),
        ("Steering", wellorder.Steering()),
    ],
)
def test_the_readme_shows_what_the_example_measures(shown, policy):
    row = re.search(rf"^\| \**`{re.escape(shown)}`.*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    distance, _, error, _ = (float(cell.strip("* ")) for cell in row.split("|")[2:6])
    problems = [quadratics(1000, seed=seed) for seed in range(10)]
    runs = [wellorder.sgd(f, policy, step_size=1e-3, epochs=40, seed=i) for i, f in enumerate(problems)]
    assert f"{np.median([run.distance[-1] for run in runs]):.1e}" == f"{distance:.1e}"
    assert f"{np.median([run.order_error[-1] for run in runs]):.1f}" == f"{error:.1f}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site):
    remote = re.compile(r"<(?:script|img|source|iframe|link)\b[^>]*\s(?:src|href)=\"?(?:https?:)?//")
    for page in site.rglob("*.html"):
        found = remote.search(page.read_text())
        assert not found, f"{page.name}: {found[0]}"


@pytest.fixture(scope="module")
def entries(site):
    """Where the site documents each dotted path: {path: page#anchor}, as other projects link to it."""
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    found = {}
    for line in zlib.decompress(packed).decode().splitlines():
        path, _, _, place, _ = line.split(" ", 4)
        found[path] = place.removesuffix("$") + path if place.endswith("$") else place
    return found


def test_every_public_name_stands_on_an_api_page(entries):
    package, missing = ROOT / "src" / "wellorder", []
    for file in [package / "__init__.py", *package.glob("[a-z]*.py"), *package.glob("[a-z]*/__init__.py")]:
        path = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        public = next(node.value for node in ast.parse(file.read_text()).body if is_all(node))
        missing += [f"{path}.{name}" for name in ast.literal_eval(public) if f"{path}.{name}" not in entries]
    assert missing == []


def test_every_entry_of_the_api_pages_has_a_public_address(entries):
    places = {place.split("#")[1] for place in entries.values() if place.startswith("api/")}
    assert sorted(place for place in places if re.search(r"\._(?!_)", place)) == []
