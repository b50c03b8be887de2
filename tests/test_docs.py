"""The documentation says what is true: its examples run, its tables are whole, its files exist."""

import ast
import contextlib
import csv
import doctest
import functools
import gc
import html
import importlib.util
import io
import re
import shlex
import socket
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

import wellorder
from wellorder.__main__ import main
from wellorder.problems import quadratics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NEEDS = {
    "README.md": "torch",
    "index.md": "torch",
    "audit.md": "torch",
    "devices.md": "transformers",
    "torch.md": "torch",
    "torch-choose.md": "torch",
    "does-it-help.md": "flwr",
    "shards.md": "webdataset",
    "federated.md": "torch",
    "flower.md": "flwr",
    "compare.md": "torch",
}
"""Pages whose examples need a package that not everybody installs."""
SLOW = {"shards.md", "devices.md"}
"""Pages whose examples take more than a few seconds, mostly to import other people's packages."""

LOADER = """
import torch, wellorder, wellorder.flower, wellorder.torch
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from wellorder import CDGraB, PairGraB, balanced, features
from wellorder.flower import OrderedStrategy
from wellorder.torch import Sketch, ordered
x, y = torch.randn(60, 6), torch.arange(60) % 3
data = TensorDataset(x, y)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
loader = DataLoader(data, batch_size=8, shuffle=True)
embeddings, W = features(x, y), 1
shards, read = range(6), lambda shard: [(x[i].numpy(), int(y[i])) for i in range(10 * shard, 10 * shard + 10)]
"""
PREPARED = {
    "index.md": LOADER,
    "audit.md": """
import torch
from torch.utils.data import DataLoader, DistributedSampler
rows = [{"image": torch.randn(6), "digit": i % 3, "label": i % 3, "id": i} for i in range(60)]
loader = DataLoader(rows, 6, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
embed = lambda batch: torch.cat([batch["image"], torch.eye(3)[batch["digit"]]], 1).numpy()
stream = lambda: loader
""",
    "flower.md": """
from flwr.clientapp import ClientApp
app = ClientApp()
""",
    "devices.md": """
import torch
from torch import nn
from torch.utils.data import TensorDataset
data, Net = TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), lambda: nn.Linear(6, 3)
loss = nn.functional.cross_entropy
files_of, rank = lambda rank: data, 0
""",
    "shards.md": """
import io, tarfile, types
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, webdataset as wds, wellorder
from datasets import Dataset
from PIL import Image
from wellorder.torch import ShardedDataset
urls = []
for at in range(4):
    urls.append(f"{at}.tar")
    with tarfile.open(urls[-1], "w") as tar:
        for i in range(6):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8), (40 * at, 40 * i, 0)).save(picture, "JPEG")
            for end, held in ("jpg", picture.getvalue()), ("cls", str(at % 2).encode()):
                info = tarfile.TarInfo(f"{i}.{end}")
                info.size = len(held)
                tar.addfile(info, io.BytesIO(held))
Path("data").mkdir()
for at in range(3):
    pq.write_table(pa.table({"x": [[1.0, at]] * 20, "y": [at] * 20}), f"data/{at}.parquet", row_group_size=10)
pictures = Dataset.from_dict({"image": [[0.0, 1.0]] * 24, "label": [0, 1, 2] * 8})
load_dataset = lambda *_, **__: pictures.to_iterable_dataset(num_shards=4)
streaming = types.SimpleNamespace(base=types.SimpleNamespace(shuffle=types.SimpleNamespace(algos={})))
dataset = types.SimpleNamespace(randomize_block_order=lambda: dataset, map_batches=lambda f, batch_size: f(
    {"x": np.random.default_rng(0).normal(size=(30, 4)), "y": np.arange(30) % 3}))
""",
}
"""What a reader has before the first line of a page."""
AFTERWARDS = {
    "shards.md": """
ids = streaming.base.shuffle.algos["wellorder"](survey.sizes, 1, 0, 0, 16)
assert sorted(ids) == list(range(survey.sizes.sum()))
""",
}
"""What must be so after its last."""

# pytest's --doctest-glob would take a block's closing fence for expected output; so blocks are cut out here.
BLOCK = re.compile(r"^```(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\n\Z")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def blocks_of(page: Path) -> list[tuple[int, str, str, bool]]:
    """Line, language, text, and whether it is to be run, of each block of a page."""
    text = page.read_text()
    return [
        (text[: m.start("text")].count("\n"), m["language"], m["text"], not NOT_RUN.search(text[: m.start()]))
        for m in BLOCK.finditer(text)
    ]


def python_of(page: Path) -> list[tuple[int, str]]:
    found = [
        (line, text, run) for line, language, text, run in blocks_of(page) if language in ("python", "pycon")
    ]
    for line, text, run in found:
        assert run or compile(text, f"{page.name}:{line}", "exec")
    return [(line, text) for line, text, run in found if run]


def offered_lines(page: Path) -> list[str]:
    """Lines of Python that tables of a page offer to type: spans of code that call something of ours."""
    rows = re.findall(r"^\|.*$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    spans = [span for row in rows for span in SPAN.findall(row)]
    ours = (
        r"(?:\w+ = |for .* in zip.*|print\()?(?:wellorder\.[\w.]+|ordered|balanced|OrderedStrategy|audit)\(.*"
    )
    return [span for span in spans if re.fullmatch(ours, span)]


def is_all(node: ast.stmt) -> bool:
    """Whether a statement says what a module exports."""
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def table_rows(heading: str) -> dict[str, str]:
    """The rows of the table under a heading of paper-to-code.md, by the number in their first cell."""
    text = (DOCS / "paper-to-code.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {row[1]: row[0] for row in re.finditer(r"^\| (\d+) \|.*$", section, re.MULTILINE)}


def slow_where_long(pages: list[Path]) -> list[object]:
    return [pytest.param(p, marks=[pytest.mark.slow] if p.name in SLOW else [], id=p.stem) for p in pages]


@pytest.mark.parametrize("page", slow_where_long([page for page in PAGES if python_of(page)]))
def test_every_example_on_the_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)  # examples write files
    if page.name in SLOW:  # trainers tell of themselves and of missing accelerators
        warnings.simplefilter("ignore")
    if page.name == "devices.md":  # what torchrun tells a process
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            told = {
                "RANK": 0,
                "WORLD_SIZE": 1,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": free.getsockname()[1],
            }
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
    names, output = {"__name__": page.stem}, []
    exec(PREPARED.get(page.name, ""), names)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    try:
        for line, text in python_of(page):
            if ">>> " not in text:
                exec(compile("\n" * line + text, str(page), "exec"), names)
                continue
            examples = doctest.DocTestParser().get_examples(text, page.name)
            test = doctest.DocTest(examples, names, page.name, str(page), line, None)
            test.globs = names  # one page, one session
            runner.run(test, out=output.append, clear_globs=False)
        exec(AFTERWARDS.get(page.name, ""), names)
    finally:
        group = sys.modules.get("torch.distributed")
        if group and group.is_initialized():
            names.clear()  # a wrapped model must not be what ends the group: it can wait for ever
            gc.collect()
            group.destroy_process_group()
    assert not runner.failures, "".join(output)


@pytest.mark.parametrize("page", [page for page in PAGES if offered_lines(page)], ids=lambda page: page.stem)
def test_every_line_that_a_table_offers_runs(page):
    pytest.importorskip("torch")
    pytest.importorskip("flwr")
    for line in offered_lines(page):
        names: dict[str, object] = {}
        exec(LOADER, names)
        exec(compile(line, f"{page.name}: {line}", "exec"), names)


def commands_of(page: Path) -> list[str]:
    """Our command lines on a page: of blocks that are not Python, and of spans of code."""
    text = page.read_text()
    lines = [line for _, language, block, _ in blocks_of(page) if language not in ("python", "pycon")
             for line in block.splitlines()]  # fmt: skip
    spans = SPAN.findall(BLOCK.sub("", text).replace("\n", " "))
    return [line for line in lines + spans if re.match(r"wellorder [a-z]", line)]


@functools.cache
def help_of(*command: str) -> str:
    """What a command says of itself; refused if there is none of that name."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(told):
        patch.setattr(sys, "argv", ["wellorder", *command, "--help"])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as done:
            main()
    assert not done.value.code, command
    return told.getvalue()


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.stem)
def test_every_command_on_the_page_is_understood(page):
    pytest.importorskip("typer")
    for line in commands_of(page):
        words = shlex.split(line.replace("…", ""), comments=True)[1:]
        command = words[: 2 if words[0] == "reproduce" else 1]
        options = [word.split("=")[0] for word in words if word.startswith("--")]
        told = help_of(*[word for word in command if not word.startswith("--")])
        assert [option for option in options if not re.search(rf"{option}\b", told)] == [], line


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_every_anchor_that_a_page_outside_the_site_links_to_is_a_heading(page):
    for path, anchor in re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        slugs = [re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings]
        assert anchor in slugs, f"{path}#{anchor}"


def test_the_gallery_has_every_example():
    shown = re.findall(r"^\| `examples/([\w.]+)/?` \|", (DOCS / "examples.md").read_text(), re.MULTILINE)
    there = [path.name for path in (ROOT / "examples").iterdir() if path.name[0] not in "._"]
    assert sorted(shown) == sorted(there)


def plain_number(text: str) -> str:
    return re.sub(r"^0(?=\.)", "", text.replace(",", ""))


@pytest.mark.parametrize("heading", ["Where it gains", "Where it does not"])
def test_every_figure_of_the_decision_page_stands_on_the_page_that_it_links_to(heading):
    section = (DOCS / "does-it-help.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    linked, number = "", re.compile(r"\d[\d,]*\.?\d*|\.\d+")
    for row in [row.split("|")[2:5] for row in section.splitlines() if row.startswith("| ")][1:]:
        linked = next(iter(re.findall(r"\]\(([\w-]+\.md)", row[2])), linked)
        told = {plain_number(n) for n in number.findall((DOCS / linked).read_text())}
        told |= {str(float(n)).removesuffix(".0") for n in told if n.count(".") == 1 and n[-1] != "."}
        shown = [plain_number(n.rstrip(",")) for n in number.findall(row[0] + row[1])]
        assert [n for n in shown if n not in told] == [], row


def test_the_picture_shows_what_the_tables_say():
    rows = csv.DictReader((DOCS / "figures" / "rounds.csv").read_text().splitlines())
    table, name = [], ""
    for line in (DOCS / "federated.md").read_text().splitlines():
        if line.startswith("| ") and len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 7:
            name = cells[0] or name
            table.append((name, cells[1], *(cells[at].strip("*").split(" ")[0] for at in (2, 4))))
    for row in rows:
        wanted = (f"{row['target']} %", row["default"], row["ordered"])
        assert any(found[0].startswith(row["clients"]) and found[1:] == wanted for found in table), row
    shown = {}
    for row in csv.DictReader((DOCS / "figures" / "shards.csv").read_text().splitlines()):
        shown.setdefault(row["order"], []).append(row["accuracy"])
    text = (DOCS / "shards.md").read_text()
    for order, values in shown.items():
        assert re.search(rf"{order}\**\s*\|.*\| \**{re.escape(' · '.join(values))}", text), order


def loaded(script):
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_clients_saved_is_told_the_same_beside_how_much_they_differ():
    pytest.importorskip("matplotlib")
    page = (DOCS / "federated.md").read_text()
    measures, saved = loaded(DOCS / "figures" / "saved.py").tables(page)
    assert len(measures) == 14
    for name in measures:
        told = re.search(rf"^\| {name}(?: a client)? \| \.\d+ \| (.*) % \|$", page, re.MULTILINE)[1]
        least, *most = [int(n) for n in told.replace("−", "-").split(" to ")]
        means = [sum(seeds) / len(seeds) for seeds in saved["FL-GraB"][name]]
        assert [least, *(most or [least])] == pytest.approx([min(means), max(means)], abs=1), name
    assert saved["BalancedCohorts"].keys() >= measures.keys()


@pytest.fixture(scope="module")
def formulas():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("mkdocs")
    return loaded(DOCS / "extensions" / "formulas.py")


@pytest.mark.parametrize(
    ("tex", "parts"),
    [
        (r"\bar\phi_q^2 \le N\varsigma", ["<msubsup>", "<mi>φ</mi>", "<mo>≤</mo>", "<mi>ς</mi>"]),
        (r"\frac1{cT}", ["<mfrac>", "<mn>1</mn>"]),
        (r"\sum_{i<n} \left\| x \right\|", ["<mo>∑</mo>", "<mo>&lt;</mo>"]),
    ],
)
def test_formulas_become_mathml(formulas, tex, parts):
    shown = html.unescape(formulas.mathml(tex)).replace("<mo><</mo>", "<mo>&lt;</mo>")
    assert shown.startswith("<math")
    assert [part for part in parts if part not in shown] == []


def test_formulas_of_pages_and_docstrings_are_found_and_prices_are_not(formulas):
    from markdown import Markdown

    assert formulas.typeset(":math:`x_0` and\n\n.. math:: a\n    + b") == "$x_0$ and\n\n$$a + b$$"
    shown = Markdown(extensions=[formulas.Formulas()]).convert(
        "from $5 to $6, `$x$`, $x_0 * y_1 * z$ and $$f$$"
    )
    assert shown.count("<math") == 2
    assert "$5 to $6" in shown
    assert "<code>$x$</code>" in shown
    assert "<em>" not in shown


def test_an_unknown_command_in_a_formula_is_named(formulas):
    with pytest.raises(ValueError, match=r"\\nosuch in the formula"):
        formulas.mathml(r"a \nosuch b")


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


def test_the_theory_page_says_from_when_on_balancing_has_the_smaller_bound():
    spec = importlib.util.spec_from_file_location("crossing", DOCS / "figures" / "crossing.py")
    crossing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crossing)
    row = re.search(r"^\| ς = 100 \|.*$", (DOCS / "theory.md").read_text(), re.MULTILINE)[0]
    told = [int(cell.replace(",", "")) for cell in re.findall(r"[\d,]{3,}", row.replace("ς = 100", ""))]
    assert [f"{crossing.first(n, 100.0):.1e}" for n in crossing.UNITS[1:]] == [
        f"{epochs:.1e}" for epochs in told
    ]


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
def test_the_page_shows_what_the_example_measures(shown, policy):
    row = re.search(rf"^\| \**`{re.escape(shown)}`.*$", (DOCS / "reproduce.md").read_text(), re.MULTILINE)[0]
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


def test_doctests_are_consoles_whose_prompts_are_neither_shown_nor_copied(site):
    for page in ("concepts.html", "api/policies.html"):
        assert '<span class="gp">&gt;&gt;&gt; </span>' in (site / page).read_text()
    css = (site / "stylesheets" / "extra.css").read_text()
    assert ".highlight .gp { display: none; }" in css
    assert re.search(r"\[data-md-copying\] \.go,.*\{ display: none; \}", css)


def test_no_page_of_the_api_speaks_in_labels_of_the_papers_source(site):
    label = re.compile(r"\b(?:alg|ex|lem|thm|def|asm|tab|apx-\w+):[A-Za-z]")
    found = {page.name: label.findall(page.read_text()) for page in (site / "api").glob("*.html")}
    assert {name: labels for name, labels in found.items() if labels} == {}


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
