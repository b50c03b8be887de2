"""The public API: every exported name is documented, and importing wellorder loads no framework."""

import inspect
import subprocess
import sys

import pytest

import wellorder
import wellorder.problems


@pytest.mark.parametrize("name", wellorder.__all__)
def test_every_exported_name_is_documented(name):
    thing = getattr(wellorder, name)
    assert inspect.getdoc(thing), name
    assert not (inspect.getdoc(thing) or "").startswith(f"{name}("), "that is the dataclass's own signature"


@pytest.mark.parametrize(
    "module", ["wellorder", "wellorder.problems", "wellorder.theory", "wellorder.federated"]
)
def test_importing_the_core_loads_no_framework(module):
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "flwr", "ray", "matplotlib", "plotly", "pyarrow", "sklearn", "typer"} & set(loaded)


def test_the_one_line_works_after_importing_wellorder_alone():
    code = "import wellorder; print(wellorder.torch.ordered.__name__, wellorder.theory.bound.__name__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["ordered", "bound"]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = wellorder.nonsense


def test_the_command_answers_both_ways():
    for command in ([sys.executable, "-m", "wellorder"], ["wellorder"]):
        if command == ["wellorder"]:
            command = [str(__import__("pathlib").Path(sys.executable).parent / "wellorder")]
        shown = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
        assert "PairGraB" in shown


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert wellorder.__version__ == version("wellorder")
