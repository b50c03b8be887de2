"""Look into the sdist and the wheel: one version, no link that leads nowhere, tests in the sdist.

``check_packages.py FILE...`` looks; ``check_packages.py --lowest`` prints the lowest versions that the
library may be installed with, as requirements.
"""

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#|mailto:)[^)]*\)|(?:src|href)=[\"'](?!https?:|#)")
WANTED = (
    "tests/test_api.py",
    "docs/index.md",
    "docs/assets/flow.svg",
    "examples/quadratics.py",
    "constraints.txt",
)


def lowest() -> list[str]:
    """Turn the library's own ``name>=1.2`` into ``name==1.2``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.sub(r">=([\w.]+).*", r"==\1", requirement) for requirement in project["dependencies"]]


def wheel_faults(path: Path) -> list[str]:
    """What is wrong with the wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        version = re.search(
            r'^__version__ = "(.*)"', wheel.read("wellorder/__init__.py").decode(), re.MULTILINE
        )
    faults = [f"link to nowhere: {link}" for link in LINK.findall(metadata)]
    if not version or f"\nVersion: {version[1]}\n" not in metadata:
        faults.append("the metadata's version is not wellorder.__version__")
    if "wellorder/py.typed" not in names:
        faults.append("wellorder/py.typed is missing")
    return faults + [f"{name} does not belong here" for name in names if not name.startswith("wellorder")]


def sdist_faults(path: Path) -> list[str]:
    """What is wrong with the sdist."""
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    return [f"{name} is missing" for name in WANTED if name not in names]


if __name__ == "__main__":
    if sys.argv[1:] == ["--lowest"]:
        print(*lowest())
        sys.exit()
    found = 0
    for file in map(Path, sys.argv[1:]):
        faults = (wheel_faults if file.suffix == ".whl" else sdist_faults)(file)
        print(f"{file.name}: {'; '.join(faults) or 'as it should be'}")
        found += len(faults)
    sys.exit(found > 0)
