"""TerraIncognita: animals before camera traps at four places in the American Southwest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diwa.data.layout import Arrangement
from diwa.data.sets.base import DataSet, Published, Remote
from diwa.data.sources import Sources
from diwa.errors import DataError

_GOOGLE = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/"
_AZURE = "https://lilablobssc.blob.core.windows.net/caltechcameratraps/"

#: Every file of annotations says of itself what these three lists are.
_LISTS = ("images", "annotations", "categories")


class _Image(msgspec.Struct):
    id: str
    file_name: str
    location: str | int = ""


class _Annotation(msgspec.Struct):
    image_id: str
    category_id: int


class _Category(msgspec.Struct):
    id: int
    name: str


class _Annotations(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


@dataclass(frozen=True, kw_only=True)
class _TerraIncognita(DataSet):
    """Knows the raw Caltech Camera Traps besides folders that are ready."""

    def arrange(self, sources: Sources, *, duplicates: Path | None = None) -> Arrangement:
        """Folders of locations as they are; else raw images, by what annotations say of them."""
        ready = super().arrange(sources, duplicates=duplicates)
        if not self.lacking(ready):
            return ready
        found = [name for name in sources.names(".json") if _is_annotations(sources, name)]
        if not found:
            if ready.files or not sources.images():
                return ready
            raise DataError(
                f"{', '.join(str(one.where) for one in sources.parts)}: images without annotations",
                remedy="give the json of Caltech Camera Traps (or the archive it is in) as well",
            )
        return self._from_raw(sources, found)

    def _from_raw(self, sources: Sources, found: list[str]) -> Arrangement:
        at = {name.rpartition("/")[2]: name for name in sources.images()}
        files: dict[str, str] = {}
        missing: set[str] = set()
        for name in found:
            read = _decoded(sources, name)
            of = defaultdict(set)
            named = {category.id: category.name for category in read.categories}
            for annotation in read.annotations:
                of[annotation.image_id].add(named.get(annotation.category_id, ""))
            for image in read.images:
                domain = f"location_{image.location}"
                if domain not in self.domains:
                    continue
                # With several animals in it, an image is an example of each, as in DomainBed.
                for label in sorted(of[image.id] & set(self.classes)):
                    file = image.file_name.rpartition("/")[2]
                    if file in at:
                        files[f"{domain}/{label}/{file}"] = at[file]
                    else:
                        missing.add(file)
        notes = [f"annotations: {', '.join(found)}"]
        if missing:
            notes.append(
                f"{len(missing):,} annotated images are not among the images, {min(missing)} first"
            )
        # Most raw images are of other places, which is as it should be: nothing is passed over.
        return Arrangement(files, notes)


def _is_annotations(sources: Sources, name: str) -> bool:
    """Whether a json is one of annotations; boxes are drawn in others, beside them."""
    if "bboxes" in name.rpartition("/")[2] and len(sources.names(".json")) > 1:
        return False
    text = sources.read(name)
    return all(f'"{part}"'.encode() in text for part in _LISTS)


def _decoded(sources: Sources, name: str) -> _Annotations:
    try:
        return msgspec.json.decode(sources.read(name), type=_Annotations)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{name}: not the annotations of Caltech Camera Traps ({error})",
            remedy="give caltech_images_20210113.json, or the folder eccv_18_annotation_files",
        ) from error


TERRA_INCOGNITA = _TerraIncognita(
    name="TerraIncognita",
    folder="terra_incognita",
    domains={
        "location_100": "L100",
        "location_38": "L38",
        "location_43": "L43",
        "location_46": "L46",
    },
    domains_also={
        f"location_{number}": (f"l{number}", str(number)) for number in (100, 38, 43, 46)
    },
    classes=(
        "bird",
        "bobcat",
        "cat",
        "coyote",
        "dog",
        "empty",
        "opossum",
        "rabbit",
        "raccoon",
        "squirrel",
    ),
    published=(
        Published(
            by="Beery et al. 2018, as in DomainBed",
            domains={
                "location_100": 4879,
                "location_38": 9767,
                "location_43": 4020,
                "location_46": 6122,
            },
        ),
        Published(
            by="newer annotations (eccv_18_annotation_files)",
            domains={
                "location_100": 4741,
                "location_38": 9736,
                "location_43": 3970,
                "location_46": 5883,
            },
        ),
    ),
    remotes=(
        Remote(
            name="eccv_18_all_images_sm.tar.gz",
            urls=(
                f"{_GOOGLE}eccv_18_all_images_sm.tar.gz",
                f"{_AZURE}eccv_18_all_images_sm.tar.gz",
            ),
            about="6.5 GB",
        ),
        Remote(
            name="annotations",
            urls=(
                f"{_GOOGLE}labels/caltech_camera_traps.json.zip",
                f"{_AZURE}labels/caltech_camera_traps.json.zip",
                f"{_GOOGLE}eccv_18_annotations.tar.gz",
            ),
        ),
    ),
    size="6.5 GB",
    homepage="https://lila.science/datasets/caltech-camera-traps",
)
