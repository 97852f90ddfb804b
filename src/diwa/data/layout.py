"""From files as somebody has them to `domain/class/image`: names only, nothing is opened here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

#: Folders between a domain and its classes in copies that come ready split.
_SPLITS = {"train", "val", "valid", "validation", "crossval", "test", "trainval", "full", "images"}
_WHOLE = "full"

#: Class -> (path under it, where it is) for one split of one domain.
_Split = dict[str, list[tuple[str, str]]]


@dataclass(frozen=True)
class Arrangement:
    """Which file goes where.

    Args:
        files: `domain/class/image` -> the file's name where it is now.
        notes: what a person should know about how that was decided.
        passed_over: images that belong to none of the domains and classes.
    """

    files: dict[str, str]
    notes: list[str] = field(default_factory=list)
    passed_over: int = 0

    def missing(self, domains: Iterable[str]) -> list[str]:
        """The domains that got no image."""
        held = {target.partition("/")[0] for target in self.files}
        return [domain for domain in domains if domain not in held]


@cache
def plain(text: str) -> str:
    """A name without case, spaces and punctuation: "Real World" is "real_world".

    Example:
        >>> plain("Real World") == plain("real_world") == plain("RealWorld")
        True
    """
    return "".join(letter for letter in text.lower() if letter.isalnum())


def arrange(
    images: Mapping[str, int],
    *,
    domains: Mapping[str, Sequence[str]],
    classes: Mapping[str, str],
    expected: Mapping[str, int],
) -> Arrangement:
    """Finds the domains' folders at whatever depth, and splits between them and the classes.

    Args:
        images: path -> bytes of everything that may be an image.
        domains: domain -> the names its folder goes by.
        classes: what a class's folder may be called -> the class.
        expected: domain -> how many images it should have; decides which splits to put together.
    """
    called = {plain(name): domain for domain, names in domains.items() for name in names}
    class_of = {plain(name): held for name, held in classes.items()}
    roots = _roots(images, called)
    found: dict[str, dict[str, _Split]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    passed_over = 0
    for path in images:
        place = _placed(path, roots, called, class_of)
        if place is None:
            passed_over += 1
        else:
            domain, split, name, rest = place
            found[domain][split][name].append((rest, path))
    files: dict[str, str] = {}
    notes: list[str] = []
    for domain in domains:
        if domain not in found:
            continue
        chosen, merged = _merged(found[domain], images, expected.get(domain))
        if chosen != [""]:
            notes.append(f"{domain}: from its folders {', '.join(chosen)}")
        files |= {f"{domain}/{target}": path for target, path in merged.items()}
    return Arrangement(files, notes, passed_over)


def _roots(images: Iterable[str], called: Mapping[str, str]) -> dict[str, str]:
    """Each domain's folder: one parent for as many as it has, the fullest for the others."""
    votes: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for path in images:
        parts = path.split("/")
        # A class and a file have to follow.
        for depth, part in enumerate(parts[:-2]):
            domain = called.get(plain(part))
            if domain is not None:
                counts = votes["/".join(parts[:depth])][domain]
                folder = "/".join(parts[: depth + 1])
                counts[folder] = counts.get(folder, 0) + 1

    def fullness(parent: str) -> tuple[int, int, int]:
        counts = votes[parent]
        total = sum(max(folders.values()) for folders in counts.values())
        return len(counts), total, -len(parent)

    roots: dict[str, str] = {}
    for parent in sorted(votes, key=fullness, reverse=True):
        for domain, folders in votes[parent].items():
            if domain not in roots.values():
                # Two folders side by side for one domain, such as `art` and `art_painting`: the
                # fuller one.
                roots[max(folders, key=lambda name: (folders[name], name))] = domain
    return roots


def _placed(
    path: str, roots: Mapping[str, str], called: Mapping[str, str], class_of: Mapping[str, str]
) -> tuple[str, str, str, str] | None:
    """Domain, split, class and what follows."""
    parts = path.split("/")
    for depth in range(1, len(parts) - 1):
        if plain(parts[depth - 1]) not in called:
            continue
        domain = roots.get("/".join(parts[:depth]))
        if domain is None:
            continue
        rest, split = parts[depth:], ""
        if plain(rest[0]) in _SPLITS and plain(rest[0]) not in class_of and len(rest) > 2:
            split, rest = plain(rest[0]), rest[1:]
        name = class_of.get(plain(rest[0]))
        if name is None or len(rest) < 2:
            return None
        return domain, split, name, "/".join(rest[1:])
    return None


def _merged(
    splits: Mapping[str, _Split], images: Mapping[str, int], expected: int | None
) -> tuple[list[str], dict[str, str]]:
    """The splits that together are the domain, and its files.

    Some copies have a folder `full` of everything beside the splits, in others it is one of
    them; the published count tells which.
    """
    every = sorted(splits)
    parts = [name for name in every if name != _WHOLE]
    if _WHOLE not in splits or not parts:
        return every, _union(splits, every, images)
    choices = [[_WHOLE], parts, every]
    unions = [_union(splits, names, images) for names in choices]
    for names, union in zip(choices, unions, strict=True):
        if len(union) == expected:
            return names, union
    if len(unions[0]) >= len(unions[1]):
        return choices[0], unions[0]
    return choices[2], unions[2]


def _union(
    splits: Mapping[str, _Split], names: Sequence[str], images: Mapping[str, int]
) -> dict[str, str]:
    """Files of several splits; one that is in two of them counts once."""
    files: dict[str, str] = {}
    for split in names:
        for name, held in sorted(splits[split].items()):
            for rest, path in sorted(held):
                target = f"{name}/{rest}"
                if target in files and images[files[target]] != images[path]:
                    # Numbered afresh in every split: another image of the same name.
                    target = f"{name}/{split}-{rest.replace('/', '-')}"
                files.setdefault(target, path)
    return files
