"""PACS: photos, art paintings, cartoons and sketches of seven classes."""

from __future__ import annotations

from diwa.data.sets.base import DataSet, Published, Remote, drive

PACS = DataSet(
    name="PACS",
    folder="PACS",
    domains={"art_painting": "A", "cartoon": "C", "photo": "P", "sketch": "S"},
    domains_also={"art_painting": ("art",)},
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    published=(
        Published(
            by="Li et al. 2017",
            domains={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
            classes={
                "art_painting": (379, 255, 285, 184, 201, 295, 449),
                "cartoon": (389, 457, 346, 135, 324, 288, 405),
                "photo": (189, 202, 182, 186, 199, 280, 432),
                "sketch": (772, 740, 753, 608, 816, 80, 160),
            },
        ),
    ),
    remotes=(
        Remote(name="PACS.zip", urls=(drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),), about="0.2 GB"),
    ),
    size="0.2 GB",
    homepage="https://github.com/facebookresearch/DomainBed/issues/165",
)
