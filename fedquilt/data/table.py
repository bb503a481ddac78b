"""What is known of each data set that comes from files: where it is, its columns, its classes, its licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A data set in the layout of the Hugging Face hub: a file, or some, for each split.

    ``folder`` is its name under the data folder; ``hub``, ``revision`` and ``config`` (a folder) say
    where it is on the hub, ``get`` how to get it where it is not there.  ``splits`` are the names of
    its training and, if it has one, of its own test part.  ``x``, ``y`` and ``group`` are the columns
    that may hold samples, labels and natural owners: the first that is there counts; a group may be
    of several columns, joined by ``+``, and who has no name in them is called ``unnamed`` (where that is
    empty, such a row is refused).  Labels begin at ``first``; ``length`` is the column that says how many
    moments a series has.  With ``pooled`` the splits are one: all their rows are shared out.  ``seen``
    says whether this program was ever run on the real files.
    """

    folder: str
    shape: tuple[int, ...]
    classes: int
    licence: str
    hub: str = ""
    revision: str = "main"
    config: str = ""
    get: str = ""
    splits: tuple[str, ...] = ("train", "test")
    ending: str = "parquet"
    x: tuple[str, ...] = ("image",)
    y: tuple[str, ...] = ("label",)
    group: tuple[str, ...] = ()
    unnamed: str = ""
    first: int = 0
    length: str = ""
    pooled: bool = False
    seen: bool = False


TABLE: Mapping[str, Entry] = {
    "cifar10": Entry(
        "cifar10",
        (3, 32, 32),
        10,
        "research use, Krizhevsky 2009",
        hub="uoft-cs/cifar10",
        revision="0b2714987fa478483af9968de7c934580d0bb9a2",
        x=("img", "image"),
        seen=True,
    ),
    "cifar100": Entry(
        "cifar100",
        (3, 32, 32),
        100,
        "research use, Krizhevsky 2009",
        hub="uoft-cs/cifar100",
        revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
        x=("img", "image"),
        y=("fine_label",),
    ),
    "mnist": Entry(
        "mnist",
        (1, 28, 28),
        10,
        "CC BY-SA 3.0, LeCun 1998",
        hub="ylecun/mnist",
        revision="77f3279092a1c1579b2250db8eafed0ad422088c",
        seen=True,
    ),
    "fashion-mnist": Entry(
        "fashion_mnist",
        (1, 28, 28),
        10,
        "MIT, Xiao et al. 2017",
        hub="zalando-datasets/fashion_mnist",
        revision="531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    ),
    "emnist": Entry(
        "emnist",
        (1, 28, 28),
        62,
        "NIST, public domain",
        get="write the by-class split of EMNIST (NIST) as parquet files with the columns image (PNG) and label",
    ),
    "femnist": Entry(
        "femnist",
        (1, 28, 28),
        62,
        "NIST, public domain; LEAF: BSD 2-clause",
        hub="flwrlabs/femnist",
        splits=("train",),
        y=("label", "character"),
        group=("client_id", "writer_id"),
        seen=True,
    ),
    "speech": Entry(
        "speech_commands_mfcc",
        (1, 32, 32),
        35,
        "CC BY 4.0, Warden 2018",
        get="write the MFCC features (32 coefficients x 32 frames) as a parquet file with the columns features, label "
        "and client_id; speech-audio makes features from the hub's audio",
        splits=("train",),
        x=("features",),
        group=("client_id", "speaker_id"),
        seen=True,
    ),
    "speech-audio": Entry(
        "speech_commands",
        (1, 32, 32),
        36,
        "CC BY 4.0, Warden 2018",
        hub="google/speech_commands",
        revision="refs/convert/parquet",
        config="v0.02",
        x=("audio",),
        group=("speaker_id",),
        unnamed="noise",
    ),
    "tiny-imagenet": Entry(
        "tiny-imagenet",
        (3, 64, 64),
        200,
        "research use, Stanford CS231n",
        hub="zh-plus/tiny-imagenet",
        revision="5a77092c28e51558c5586e9c5eb71a7e17a5e43f",
        splits=("train", "valid"),
    ),
    "uci-har": Entry(
        "uci-har",
        (1, 561),
        6,
        "CC BY 4.0, Reyes-Ortiz et al. 2013",
        hub="Beothuk/uci-har-federated",
        splits=("train", "test"),
        x=("0..560",),
        y=("target",),
        group=("subject_id",),
        first=1,
        pooled=True,
    ),
    "spar": Entry(
        "spar",
        (6, 100),
        7,
        "BSD 3-clause, from the seglearn package, Burns et al. 2018",
        get="write seglearn.datasets.load_watch() as a parquet file of columns series, length, label, subject, side",
        splits=("train",),
        x=("series",),
        group=("subject+side",),
        length="length",
        seen=True,
    ),
    "shakespeare": Entry(
        "shakespeare",
        (80,),
        66,
        "public domain",
        get="download input.txt from "
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        splits=("input",),
        ending="txt",
        seen=True,
    ),
    "reddit": Entry(
        "reddit",
        (10,),
        10_000,
        "as LEAF's, BSD 2-clause; the comments are their writers'",
        get="write it by LEAF's data/reddit",
        splits=("train",),
        ending="json",
    ),
}
