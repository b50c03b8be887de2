"""Versions of Flower that we do not know are refused at import, with the cure."""

import importlib
import sys
from importlib import metadata

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")


def imported(monkeypatch, version):
    """Import wellorder.flower as if that version of flwr were installed."""
    real = metadata.version

    def told(name):
        if name == "flwr" and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == "flwr" else real(name)

    monkeypatch.setattr(metadata, "version", told)
    monkeypatch.delitem(sys.modules, "wellorder.flower", raising=False)
    return importlib.import_module("wellorder.flower")


@pytest.mark.parametrize("version", ["1.41.0", "1.41.3"])
def test_the_supported_version_is_imported(monkeypatch, version):
    assert imported(monkeypatch, version).OrderedStrategy


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0", "2.41.0", "1.4.1"])
def test_another_version_is_refused_with_the_cure(monkeypatch, version):
    with pytest.raises(
        ImportError, match=rf"supports flwr 1.41, but {version} .*pip install 'flwr\[simulation\]==1.41"
    ):
        imported(monkeypatch, version)


def test_no_flower_at_all_is_refused_with_the_cure(monkeypatch):
    with pytest.raises(ImportError, match=r"needs Flower \(flwr 1.41\); .*pip install"):
        imported(monkeypatch, None)
