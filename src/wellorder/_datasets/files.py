"""The data sets of the experiments, read from their official files; nothing is ever unpickled. NumPy only.

Downloads are over https, and every byte is checked before a file gets its name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, flag, path_of, shown, whole_number
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

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
CINIC_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as uint8 (n, channels, height, width), labels as int64 (n,), the channels' mean and spread."""

    name: str
    train_images: Images = field(repr=False)
    train_labels: Labels = field(repr=False)
    test_images: Images = field(repr=False)
    test_labels: Labels = field(repr=False)
    classes: int
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        whole_number("classes", self.classes, least=1)
        if not isinstance(self.name, str):
            raise ValueError(f"name={shown(self.name)}: pass a name, as a string")
        for split in ("train", "test"):
            images, labels = (
                array_of(name, getattr(self, name), cure="pass an array of numbers")
                for name in (f"{split}_images", f"{split}_labels")
            )
            if images.ndim != 4 or images.dtype != np.uint8 or not len(images):
                raise ValueError(
                    f"{split}_images of shape {images.shape}, {images.dtype}: "
                    "pass uint8 (n, channels, height, width)"
                )
            if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"{split}_labels of shape {labels.shape}, {labels.dtype}: pass one whole label for each "
                    f"of {len(images)} images"
                )
            low, high = labels.min(), labels.max()
            if low < 0 or high >= self.classes:
                raise ValueError(
                    f"{self.name}: {split}_labels run from {low} to {high}, but must lie in "
                    f"0..{self.classes - 1}; take another file, this one is damaged or of another data set"
                )


def read_idx(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes, gzipped or not; its header must promise exactly the bytes that follow.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 1, 9]))
    >>> read_idx(file)
    array([7, 1, 9], dtype=uint8)
    """
    raw = read_bytes(Path(path))
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(
            f"{path} is no idx file of bytes (it starts with {raw[:4].hex()}); download it again"
        )
    ndim = raw[3]
    start = 4 + 4 * ndim
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], ">u4")) if len(raw) >= start else ()
    wanted = start + int(np.prod(shape, dtype=np.int64))
    if len(shape) != ndim or len(raw) != wanted:
        raise ValueError(f"{path}: {len(raw)} bytes, but its header promises {wanted}; download it again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def mnist(
    folder: str | os.PathLike[str] | None = None, *, verify: bool = True, download: bool = False
) -> Dataset:
    """MNIST from its four idx files (gzipped or not).

    Parameters
    ----------
    folder
        Where the files are, or a folder with a subfolder ``mnist``; ``$WELLORDER_DATA`` unless given.
    verify
        Compare with the official checksums; False accepts files of your own in this format.
    download
        Fetch missing files first; their checksums are always verified.
    """
    return _idx_set("mnist", folder, verify, download, (0.1307,), (0.3081,))


def fashion_mnist(
    folder: str | os.PathLike[str] | None = None, *, verify: bool = True, download: bool = False
) -> Dataset:
    """Fashion-MNIST from its four idx files; arguments as for `mnist` (subfolder ``fashion_mnist``)."""
    return _idx_set("fashion_mnist", folder, verify, download, (0.2860,), (0.3530,))


def cifar10(
    folder: str | os.PathLike[str] | None = None, *, verify: bool = True, download: bool = False
) -> Dataset:
    """CIFAR-10 from its official binary files; arguments as for `mnist` (folder ``cifar-10-batches-bin``)."""
    flag("verify", verify)
    home = _home("cifar10", folder, "cifar-10-batches-bin", "test_batch.bin", download)
    parts = [_records("cifar10", home / f"data_batch_{i}.bin", 1, verify) for i in range(1, 6)]
    test_labels, test_images = _records("cifar10", home / "test_batch.bin", 1, verify)
    return Dataset(
        "cifar10",
        np.concatenate([images for _, images in parts]),
        np.concatenate([labels[:, 0] for labels, _ in parts]),
        test_images,
        test_labels[:, 0],
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    )


def cifar100(
    folder: str | os.PathLike[str] | None = None, *, verify: bool = True, download: bool = False
) -> Dataset:
    """CIFAR-100, fine labels, from its official binary files; as `cifar10` (folder ``cifar-100-binary``)."""
    flag("verify", verify)
    home = _home("cifar100", folder, "cifar-100-binary", "train.bin", download)
    train_labels, train_images = _records("cifar100", home / "train.bin", 2, verify)
    test_labels, test_images = _records("cifar100", home / "test.bin", 2, verify)
    return Dataset(
        "cifar100", train_images, train_labels[:, 1], test_images, test_labels[:, 1],
        100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
    )  # fmt: skip


def cinic10(folder: str | os.PathLike[str] | None = None) -> Dataset:
    """CINIC-10 from its folders ``train/<class>/*.png`` and ``test/<class>/*.png``; needs Pillow to read PNG.

    Files are read in the order of their names; a grey image fills all three channels. It cannot be fetched
    from here: download CINIC-10.tar.gz from the University of Edinburgh's DataShare and unpack it.
    """
    home = _home("cinic10", folder, "cinic10", "train", download=False)
    train_images, train_labels = _png_folder(home / "train")
    test_images, test_labels = _png_folder(home / "test")
    return Dataset(
        "cinic10", train_images, train_labels, test_images, test_labels, 10,
        (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835),
    )  # fmt: skip


DATASETS: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cinic10": cinic10,
}
"""The data sets by name."""


def _home(name: str, folder: str | os.PathLike[str] | None, sub: str, witness: str, download: bool) -> Path:
    """Find the folder that holds the data set's files; fetch them first if asked to."""
    flag("download", download)
    cure = "unpack it there" if name == "cinic10" else "put the official files there, or pass download=True"
    try:
        return find_home(name, folder, sub, witness, cure)
    except ValueError:
        given = folder if folder is not None else os.environ.get("WELLORDER_DATA")
        if not (download and given):
            raise
    home = path_of("folder", given, what=f"the folder that holds {name}") / sub
    fetch(name, home)
    return home


def find_home(name: str, folder: str | os.PathLike[str] | None, sub: str, witness: str, cure: str) -> Path:
    """The folder, or its subfolder, that holds the file ``witness``, packed or not."""
    given = folder if folder is not None else os.environ.get("WELLORDER_DATA")
    if given is None or (isinstance(given, str) and not given):
        raise ValueError(f"folder=None: pass the folder that holds {name}, or set WELLORDER_DATA to it")
    home = path_of("folder", given, what=f"the folder that holds {name}")
    places = [home, home / sub]
    for place in places:
        if (place / witness).exists() or (place / witness).with_suffix("").exists():
            return place
    raise ValueError(f"folder={str(given)!r}: no {witness} in it or in its subfolder {sub}; {cure}")


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, unpacked if it is gzipped."""
    if not path.exists():
        raise ValueError(f"{path} is missing; put the official file there, or pass download=True")
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); download it again") from error


def _verified(name: str, path: Path) -> None:
    official = CHECKSUMS.get(name, {}).get(path.name)
    if official and hashlib.sha256(path.read_bytes()).hexdigest() != official:
        raise ValueError(
            f"{path} is not the official file (its checksum differs); download it again, "
            "or pass verify=False for a file of your own in this format"
        )


def _idx_set(
    name: str, folder: Any, verify: bool, download: bool, mean: tuple[float, ...], std: tuple[float, ...]
) -> Dataset:
    flag("verify", verify)
    home = _home(name, folder, name, "train-images-idx3-ubyte.gz", download)
    arrays = []
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        packed = home / f"{stem}-ubyte.gz"
        path = packed if packed.exists() else home / f"{stem}-ubyte"
        if verify:
            _verified(name, path) if path.exists() else None
        array = read_idx(path)
        if array.ndim != (3 if "images" in stem else 1):
            raise ValueError(
                f"{path} holds {array.ndim}-dimensional data; it is not {stem}-ubyte: rename or replace it"
            )
        arrays.append(array)
    train, train_labels, test, test_labels = arrays
    return Dataset(
        name,
        train[:, None],
        train_labels.astype(np.int64),
        test[:, None],
        test_labels.astype(np.int64),
        10,
        mean,
        std,
    )


def _records(name: str, path: Path, columns: int, verify: bool) -> tuple[Labels, Images]:
    """CIFAR's records: one byte for each label column, then the 3072 bytes of an image, plane by plane."""
    raw, width = read_bytes(path), columns + 3072
    if not raw or len(raw) % width:
        raise ValueError(
            f"{path}: {len(raw)} bytes are not whole records of {width} bytes; download it again"
        )
    table = np.frombuffer(raw, np.uint8).reshape(-1, width)
    images = np.ascontiguousarray(table[:, columns:]).reshape(-1, 3, 32, 32)
    if verify:
        _verified(name, path)
        _verified_images(name, path, images)
    return table[:, :columns].astype(np.int64), images


def _verified_images(name: str, path: Path, images: Images) -> None:
    official = CHECKSUMS.get(name, {}).get(f"{path.name}:images")
    if official:
        pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        if hashlib.sha256(pixels.data).hexdigest() != official:
            raise ValueError(
                f"{path} does not hold the official images (their checksum differs); download it again, "
                "or pass verify=False for a file of your own in this format"
            )


def _png_folder(folder: Path) -> tuple[Images, Labels]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise ValueError("CINIC-10 is made of PNG files, which Pillow reads: pip install pillow") from error
    images, labels = [], []
    for label, name in enumerate(CINIC_CLASSES):
        files = sorted((folder / name).glob("*.png"))
        if not files:
            raise ValueError(f"{folder / name} holds no PNG file; unpack the whole of CINIC-10 there")
        for file in files:
            try:
                with Image.open(file) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
            except (UnidentifiedImageError, OSError) as error:
                raise ValueError(f"{file} is damaged ({error}); unpack CINIC-10 again") from error
            if pixels.shape != (32, 32, 3):
                raise ValueError(
                    f"{file} is {pixels.shape[1]}×{pixels.shape[0]} pixels, not 32×32; unpack CINIC-10 again"
                )
            images.append(pixels.transpose(2, 0, 1))
        labels.append(np.full(len(files), label, np.int64))
    return np.stack(images), np.concatenate(labels)


def fetch(name: str, folder: str | os.PathLike[str]) -> None:
    """Download a data set into ``folder``; a file appears there whole and checked, or not at all."""
    home = Path(folder)
    if name in ARCHIVES:
        url, md5 = ARCHIVES[name]
        raw = _get(url)
        if hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
            raise ValueError(f"{url}: the download's checksum differs from the published one; try again")
        home.mkdir(parents=True, exist_ok=True)
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
        home.mkdir(parents=True, exist_ok=True)
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
