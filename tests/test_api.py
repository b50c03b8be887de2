"""The public surface: few namespaces, every name documented, and no private file for anybody outside."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wellorder

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "wellorder"
PARTS = sorted(path.stem for path in PACKAGE.iterdir() if path.suffix in {"", ".py"} and path.name[0] != "_")
NAMESPACES = ["wellorder", *(f"wellorder.{part}" for part in PARTS)]
NEEDS = {
    "wellorder.torch": "torch",
    "wellorder.lightning": "lightning",
    "wellorder.transformers": "transformers",
    "wellorder.flower": "flwr",
    "wellorder.federated": "torch",
    "wellorder.experiments": "pyarrow",
    "wellorder.report": "pyarrow",
}
"""What must be installed for all names of a namespace to be had."""

# wellorder.a._b, and from wellorder.a import _b; __version__ and its like are nobody's secret.
PRIVATE = re.compile(r"\bwellorder(?:\.\w+)*\._(?!_)\w+|\bfrom wellorder(?:\.\w+)* import [^\n]*\b_(?!_)\w+")

SURFACE = [
    "tests/test_algorithm.py",
    "tests/test_api.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_theorems.py",
    "tests/policies/test_policies.py",
    "tests/policies/test_transcriptions.py",
    "tests/problems/test_problems.py",
    "tests/flower/app",
]
"""Tests that use the library as its users do. Others look inside, and may import private files."""


def namespace(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return importlib.import_module(name)


def below(*places):
    """The Python files in these folders of the checkout, or these files themselves."""
    paths = [ROOT / place for place in places]
    return [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]


def imported(path):
    """Every dotted path that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def docstrings(path):
    """Every docstring of a file, of private functions too: they are run as tests, and read as examples."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_namespaces_are_these():
    found = {"policies", "problems", "theory", "torch", "federated", "flower", "experiments", "report"}
    found |= {"lightning", "transformers", "shards"}
    assert set(PARTS) == found


def test_files_behind_a_namespace_are_private():
    public = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    public = [path for path in public if not any(part.startswith("_") for part in path.parts)]
    assert [str(path) for path in public if str(path.with_suffix("")) not in PARTS] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_no_page_names_a_private_path(page):
    assert [found[0] for found in PRIVATE.finditer(page.read_text())] == []


@pytest.mark.parametrize("path", below("examples", *SURFACE), ids=lambda path: path.stem)
def test_examples_and_tests_of_the_surface_import_public_names_only(path):
    assert [name for name in imported(path) if PRIVATE.match(name)] == []


def test_doctests_import_public_names_only():
    parser = doctest.DocTestParser()
    for path in below("src"):
        for text in docstrings(path):
            for example in parser.get_examples(text):
                assert not PRIVATE.search(example.source), f"{path.name}: {example.source}"


@pytest.fixture(scope="module")
def sources():
    """The package as the documentation's tool reads it, which sees the docstrings of constants too."""
    griffe = pytest.importorskip("griffe")
    return griffe.load("wellorder", search_paths=[ROOT / "src"], resolve_aliases=True)


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_exported_name_exists_and_is_documented(name, sources):
    part = namespace(name)
    assert part.__doc__
    for exported in part.__all__:
        thing, path = getattr(part, exported), f"{name}.{exported}"
        if inspect.isclass(thing) or inspect.isroutine(thing):  # as help() shows it, but not by inheritance
            told = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        else:
            found = sources[path.removeprefix("wellorder.")].docstring
            told = found and found.value
        assert told, f"{path} has no docstring"
        assert not told.startswith(f"{exported}("), f"{path}: that is the dataclass's own signature"


SLOW_TO_IMPORT = ("wellorder.lightning", "wellorder.transformers")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW_TO_IMPORT else ()) for name in NAMESPACES],
)
def test_a_namespace_answers_after_importing_wellorder_alone(name):
    namespace(name)
    shown = subprocess.run(
        [sys.executable, "-c", f"import wellorder; print({name}.__name__)"], capture_output=True, text=True
    )
    assert shown.stdout.strip() == name, shown.stderr


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = wellorder.nonsense


@pytest.mark.parametrize(
    "module", ["wellorder", "wellorder.problems", "wellorder.theory", "wellorder.federated"]
)
def test_importing_the_core_loads_no_framework(module):
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "flwr", "ray", "matplotlib", "pyarrow", "sklearn", "typer"} & set(loaded)


def test_the_command_answers_both_ways():
    for command in ([sys.executable, "-m", "wellorder"], [str(Path(sys.executable).parent / "wellorder")]):
        shown = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
        assert "PairGraB" in shown


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert wellorder.__version__ == version("wellorder")
