"""Data that come with their owners: MNIST by the hand that wrote it, Shakespeare by the role that speaks."""

from __future__ import annotations

import json
import lzma
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import whole_number
from wellorder._datasets.files import find_home, read_bytes

Ints = npt.NDArray[np.int64]
WRITERS = "qmnist-train-labels-idx2-int.gz"
ROLES = "shakespeare_roles.jsonl.xz"
_HEADER = b"\x00\x00\x0c\x02"
"""An idx file of two dimensions of big-endian int32."""
_WRITER = 2
"""The column of QMNIST's labels that names the writer."""


@dataclass(frozen=True, eq=False)
class Text:
    """Stretches of characters, the character after each, and who speaks; characters by their numbers."""

    name: str
    train: Ints = field(repr=False)
    """(n, width)."""
    train_labels: Ints = field(repr=False)
    owners: Ints = field(repr=False)
    """(n,): the speaker of each, a number into ``names``."""
    test: Ints = field(repr=False)
    test_labels: Ints = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    alphabet: str

    @property
    def classes(self) -> int:
        """How many different characters there are."""
        return len(self.alphabet)


def mnist_writers(folder: str | os.PathLike[str] | None = None) -> Ints:
    """Who wrote each of MNIST's 60,000 training images: 539 writers, from QMNIST's official label file.

    ``federate(mnist(folder), by_client(mnist_writers(folder)))`` makes each writer a client.

    Parameters
    ----------
    folder
        Where ``qmnist-train-labels-idx2-int.gz`` is (unpacked or not), or a folder with a subfolder
        ``clients``; ``$WELLORDER_DATA`` unless given.
    """
    path = _file(folder, WRITERS, "MNIST's writers")
    raw = read_bytes(path)
    count, columns = (int(size) for size in np.frombuffer(raw[4:12].ljust(8, b"\0"), ">u4"))
    if raw[:4] != _HEADER or columns <= _WRITER or len(raw) != 12 + 4 * count * columns:
        raise ValueError(f"{path} is no idx file of rows of numbers, or not all of one; download it again")
    return np.frombuffer(raw, ">i4", offset=12).reshape(count, columns)[:, _WRITER].astype(np.int64)


def shakespeare(
    folder: str | os.PathLike[str] | None = None,
    *,
    width: int = 80,
    stride: int = 1,
    least: int = 1000,
) -> Text:
    """Shakespeare's plays by speaking role: the next character from the ``width`` before it.

    Each role of a play is an owner. The last fifth of what it says is for testing.

    Parameters
    ----------
    folder
        Where ``shakespeare_roles.jsonl.xz`` is (unpacked or not): a line of JSON a role, with ``play``,
        ``role`` and ``speeches``, each a list of its place in the play and its lines. Or a folder with a
        subfolder ``clients``; ``$WELLORDER_DATA`` unless given.
    width, stride
        Characters of a stretch, and how far apart stretches begin.
    least
        Roles that say fewer characters are left out.
    """
    whole_number("width", width, least=1)
    whole_number("stride", stride, least=1)
    whole_number("least", least, least=0)
    spoken = _spoken(_file(folder, ROLES, "Shakespeare's roles"))
    spoken = {name: text for name, text in spoken.items() if len(text) >= max(least, 2 * width + 10)}
    if not spoken:
        raise ValueError(f"least={least}: no role says so much; pass less")
    alphabet = "".join(sorted(set().union(*spoken.values())))
    number = np.zeros(0x110000, np.int64)
    number[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    names = ("train", "train_labels", "owners", "test", "test_labels")
    parts: dict[str, list[Ints]] = {name: [] for name in names}
    for owner, text in enumerate(spoken.values()):
        codes = number[np.frombuffer(text.encode("utf-32-le"), "<u4")]
        cut = len(codes) * 4 // 5
        for part, own in (("train", codes[:cut]), ("test", codes[cut:])):
            rows = np.lib.stride_tricks.sliding_window_view(own, width)[:-1:stride]
            parts[part].append(rows)
            parts[f"{part}_labels"].append(own[width:][::stride])
            if part == "train":
                parts["owners"].append(np.full(len(rows), owner))
    arrays = {name: np.concatenate(rows) for name, rows in parts.items()}
    return Text("shakespeare", **arrays, names=tuple(spoken), alphabet=alphabet)


def _spoken(path: Path) -> dict[str, str]:
    """All that each role says, by play and role."""
    raw = path.read_bytes()
    try:
        lines = (lzma.decompress(raw) if raw[:6] == b"\xfd7zXZ\x00" else raw).decode().splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return {
            f"{row['play']}: {row['role']}": " ".join(" ".join(speech[1:]) for speech in row["speeches"])
            for row in rows
        }
    except (lzma.LZMAError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or no file of roles ({error}); download it again") from error


def _file(folder: str | os.PathLike[str] | None, name: str, what: str) -> Path:
    """The file, packed or not."""
    home = find_home(what, folder, "clients", name, "put it there")
    return home / name if (home / name).exists() else (home / name).with_suffix("")
