"""Versions of Flower: older ones are refused at import, newer ones tried with a warning."""

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
    for name in [name for name in sys.modules if name.split(".")[:2] == ["wellorder", "flower"]]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("wellorder.flower")


@pytest.mark.parametrize("version", ["1.41.0", "1.41.3"])
def test_the_supported_version_is_imported(monkeypatch, version):
    assert imported(monkeypatch, version).OrderedStrategy


@pytest.mark.parametrize("version", ["1.40.0", "2.41.0", "1.4.1", "0.99"])
def test_an_older_or_quite_another_version_is_refused_with_the_cure(monkeypatch, version):
    with pytest.raises(
        ImportError, match=rf"supports flwr 1.41, but {version} .*pip install 'flwr\[simulation\]==1.41"
    ):
        imported(monkeypatch, version)


@pytest.mark.parametrize("version", ["1.42.0", "1.50.1"])
def test_a_newer_minor_version_is_tried_with_a_warning(monkeypatch, version):
    with pytest.warns(UserWarning, match=rf"tested with flwr 1.41, and {version} .*pip install 'flwr"):
        assert imported(monkeypatch, version).OrderedStrategy


def test_no_flower_at_all_is_refused_with_the_cure(monkeypatch):
    with pytest.raises(ImportError, match=r"needs Flower \(flwr 1.41\); .*pip install"):
        imported(monkeypatch, None)


@pytest.mark.parametrize(
    "name", ["flwr.app.MetricRecord", "flwr.serverapp.Grid", "flwr.serverapp.Grid.pull_messages"]
)
def test_what_a_version_has_not_is_named(monkeypatch, name):
    monkeypatch.delattr(name)
    with pytest.raises(ImportError, match=rf"flwr 1.41.0 has no {name}, which wellorder.flower needs"):
        imported(monkeypatch, "1.41.0")
