"""VLCS: what VOC2007, LabelMe, Caltech101 and SUN09 have in common."""

from __future__ import annotations

from diwa.data.sets.base import DataSet, Published, Remote, drive

_CLASSES = ("bird", "car", "chair", "dog", "person")

VLCS = DataSet(
    name="VLCS",
    folder="VLCS",
    domains={"Caltech101": "C", "LabelMe": "L", "SUN09": "S", "VOC2007": "V"},
    domains_also={
        "Caltech101": ("caltech",),
        "SUN09": ("sun",),
        "VOC2007": ("pascal", "voc", "pascalvoc2007"),
    },
    classes=_CLASSES,
    # Copies with ready-made splits number their classes.
    classes_also={str(number): name for number, name in enumerate(_CLASSES)},
    published=(
        Published(
            by="Fang et al. 2013",
            domains={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
            classes={
                "Caltech101": (237, 123, 118, 67, 870),
                "LabelMe": (80, 1209, 89, 43, 1235),
                "SUN09": (21, 933, 1036, 31, 1261),
                "VOC2007": (330, 699, 428, 420, 1499),
            },
        ),
    ),
    remotes=(
        Remote(
            name="VLCS.tar.gz", urls=(drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"),), about="3.6 GB"
        ),
    ),
    size="3.6 GB",
    homepage="https://github.com/facebookresearch/DomainBed/issues/165",
)
