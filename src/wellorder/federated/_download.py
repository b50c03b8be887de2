"""Fetching data sets: over https where there is a network, every byte checked before a file gets its name."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from wellorder._saving import write_bytes

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"

CHECKSUMS: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "cifar10": {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "cifar100": {  # of the pixels, row by row: the whole files' sums are not published
        "train.bin:images": "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "test.bin:images": "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
    },
}
"""sha256 of the official files."""

ARCHIVES = {
    "cifar10": (_CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": (_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
"""Address and the md5 that its publisher gives."""


def fetch(name: str, folder: str | os.PathLike[str]) -> None:
    """Download a data set into ``folder``; a file appears there whole and checked, or not at all."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    if name in ARCHIVES:
        url, md5 = ARCHIVES[name]
        raw = _get(url)
        if hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
            raise ValueError(f"{url}: the download's checksum differs from the published one; try again")
        _unpack(name, raw, home)
        return
    if name not in ("mnist", "fashion_mnist"):
        raise ValueError(f"name={name!r}: there is no address to download it from; put its files into {home}")
    for file, official in CHECKSUMS[name].items():
        url = (_MNIST if name == "mnist" else _FASHION) + file
        if (home / file).exists():
            continue
        raw = _get(url)
        if hashlib.sha256(raw).hexdigest() != official:
            raise ValueError(f"{url}: the download's checksum differs from the official one; try again")
        write_bytes(home / file, raw)


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (only the https addresses above)
            raw: bytes = answer.read()
            return raw
    except (urllib.error.URLError, OSError) as error:
        raise ValueError(
            f"{url} cannot be reached ({error}); download it elsewhere and pass its folder"
        ) from error


def _unpack(name: str, raw: bytes, home: Path) -> None:
    wanted = {key.split(":")[0] for key in CHECKSUMS[name]}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if Path(member.name).name in wanted else None
            if file is not None:
                write_bytes(home / Path(member.name).name, file.read())
