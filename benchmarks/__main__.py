"""Run benchmarks by name, or those of the core: ``python -m benchmarks [--list] [NAME ...]``."""

import argparse
import importlib
import platform
import sys
from pathlib import Path

import numba
import numpy as np

CORE = ("kernels", "advance", "algorithm")
SHARED = ("timing", "torch_models")


def main() -> None:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem not in SHARED)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default {', '.join(CORE)}"
    )
    parser.add_argument("--list", action="store_true", help="name every benchmark and what it measures")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(names))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(names)}")
    if chosen.list:
        for name in names:
            text = (Path(__file__).parent / f"{name}.py").read_text()
            print(f"{name:22} {text.split(chr(34) * 3)[1].splitlines()[0]}")
        return
    versions = f"NumPy {np.__version__}, numba {numba.__version__}"
    print(f"{platform.machine()}, Python {platform.python_version()}, {versions}")
    sys.path.insert(0, str(Path(__file__).parent))  # where a script that is run by itself finds its models
    for name in chosen.names or CORE:
        sys.argv = [str(Path(__file__).with_name(f"{name}.py"))]
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {(module.__doc__ or '').splitlines()[0]}")
        module.main()


if __name__ == "__main__":
    main()
