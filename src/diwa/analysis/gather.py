"""From opened weights to what can be known of them without data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from diwa.analysis.compare import APART
from diwa.analysis.evidence import Evidence, MemberFacts, PairFacts
from diwa.errors import WeightsError
from diwa.progress import QUIET, Progress
from diwa.weights.agree import described, disagreements, holdings
from diwa.weights.geometry import Geometry, measure
from diwa.weights.kinship import Kinship, kinship, matrices
from diwa.weights.member import Member

if TYPE_CHECKING:
    from diwa.weights.header import TensorInfo

#: Statistics of the data, not weights: they don't count as distance.
_STATISTICS = ("running_mean", "running_var")
#: Members that share fewer of their numbers are of another architecture: nothing is compared.
_IN_COMMON = 0.5


class Agreement:
    """Which members hold the same tensors of the same network.

    Args:
        members: their names must differ from each other.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.differ = disagreements(members)
        groups: dict[object, list[Member]] = {}
        for member in members:
            groups.setdefault(self._look(member), []).append(member)
        #: Those that agree with each other, the largest group first.
        self.groups = sorted(groups.values(), key=len, reverse=True)
        self._group = {one.name: n for n, group in enumerate(self.groups) for one in group}

    def phrases(self) -> list[str]:
        """What differs, in words."""
        said = described(self.differ, [member.name for member in self.members])
        networks = {_network(member) for member in self.members} - {""}
        if len(networks) > 1:
            said.append("their files tell of different networks, or of different classes")
        return said

    def together(self, one: Member, other: Member) -> bool:
        """Whether two members agree."""
        return self._group[one.name] == self._group[other.name]

    def comparable(self) -> list[Member]:
        """Members that hold enough of the same to be compared, in order."""
        usual = self.groups[0][0]
        infos = held_infos(usual)
        total = sum(info.size for info in infos.values())
        differ = {one.tensor for one in self.differ}
        shared = sum(info.size for name, info in infos.items() if name not in differ)
        if shared >= _IN_COMMON * total:
            return self.members
        return [member for member in self.members if self.together(member, usual)]

    def _look(self, member: Member) -> object:
        places = [
            next(n for n, (_, who) in enumerate(one.found) if member.name in who)
            for one in self.differ
        ]
        return (tuple(places), _network(member))


def held_infos(member: Member) -> Mapping[str, TensorInfo]:
    """A member's tensors; those that it ties are there once."""
    return {n: i for n, i in member.source.tensors.items() if n not in member.source.aliases}


def gather(
    agreement: Agreement,
    *,
    base: Member | None = None,
    threads: int | None = None,
    progress: Progress = QUIET,
) -> Evidence:
    """Reads all weights once and notes what can be known of them.

    Args:
        agreement: the members.
        base: what they were fine-tuned from, if known.
        threads: how many; one per processor by default.
        progress: who hears how it goes.

    Raises:
        WeightsError: if the base holds NaN or infinity.
    """
    return _Gathering(agreement, base, threads, progress).evidence()


class _Gathering:
    def __init__(
        self, agreement: Agreement, base: Member | None, threads: int | None, told: Progress
    ) -> None:
        self.agreement, self.base, self.threads = agreement, base, threads
        self.broken: dict[str, str] = {}
        self.sound = agreement.comparable()
        whole = self._measured(told)
        if self.broken:
            self.sound = [member for member in self.sound if member.name not in self.broken]
            whole = self._measured(told)
        self.statistics = whole.of(lambda name: name.endswith(_STATISTICS))
        weights = whole.of(lambda name: not name.endswith(_STATISTICS))
        self.spots = weights.hot_spots()
        telling = set(matrices(self._infos()))
        # Scales of batch norm are large, positive and alike in all networks: beside them, the
        # distance of the matrices would not be seen. Without matrices, all there is must do.
        self.near = weights.of(lambda name: name in telling) if telling else weights
        self.kin = self._related(sorted(telling))
        self.places = {member.name: place for place, member in enumerate(self.sound)}

    def evidence(self) -> Evidence:
        """All of it."""
        members = self.agreement.members
        enough = len(self.sound) > 1
        return Evidence(
            members=[self._of_member(member) for member in members],
            pairs=[self._of_pair(one, other) for one, other in combinations(members, 2)],
            base=self.base.name if self.base else None,
            base_sigma=self._base_sigma(),
            disagreements=tuple(self.agreement.phrases()),
            tensors=len(self._infos()),
            matrices=len(self.kin.names),
            ratio=self.near.ratio if enough else None,
            hot_spots=tuple(self.spots),
            integers=tuple(self._integers()),
        )

    def _infos(self) -> Mapping[str, TensorInfo]:
        """The tensors in which the sound members agree."""
        if not self.sound:
            return {}
        differ = {one.tensor for one in disagreements(self.sound)}
        held = holdings([member.source for member in self.sound])
        infos, seen = {}, set()
        for name, kept in held[0].items():
            # Tensors that all members store once would count twice.
            stored = tuple(one.get(name) for one in held)
            if name not in differ and stored not in seen:
                infos[name] = self.sound[0].source.tensors[kept]
                seen.add(stored)
        return infos

    def _measured(self, told: Progress) -> Geometry:
        names = [name for name, info in self._infos().items() if info.kind.floating]
        sources = [member.source for member in self.sound]
        base = self.base.source if self.base else None
        if not sources:
            return Geometry(())
        found = measure(sources, names, base=base, threads=self.threads, progress=told)
        for place, name in found.broken:
            if place == len(sources):
                raise WeightsError(
                    f"{base.path if base else ''}: {name!r} holds NaN or infinity",
                    remedy="give another base",
                )
            self.broken.setdefault(self.sound[place].name, name)
        return found

    def _related(self, names: Sequence[str]) -> Kinship:
        sources = [member.source for member in self.sound]
        related = kinship(sources, names, threads=self.threads)
        self.to_base: Kinship | None = None
        if self.base and sources:
            own = matrices(self.base.source.tensors)
            shapes = self._infos()
            alike = [
                name
                for name in names
                if name in own and self.base.source.tensors[name].shape == shapes[name].shape
            ]
            self.to_base = kinship([*sources, self.base.source], alike, threads=self.threads)
        return related

    def _base_sigma(self) -> float | None:
        if self.to_base is None:
            return None
        bonds = [self.to_base.bond(place, len(self.sound)) for place in range(len(self.sound))]
        known = [bond.sigma for bond in bonds if bond is not None]
        return max(known) if known else None

    def _integers(self) -> list[str]:
        held = holdings([member.source for member in self.sound])
        differ = []
        for name, info in self._infos().items():
            if info.kind.floating:
                continue
            arrays = [m.source.array(h[name]) for m, h in zip(self.sound, held, strict=True)]
            if not all(np.array_equal(array, arrays[0]) for array in arrays[1:]):
                differ.append(name)
        return differ

    def _of_member(self, member: Member) -> MemberFacts:
        about = member.about
        run = about.get("run")
        hparams = run.get("hparams") if isinstance(run, dict) else None
        norm = from_mean = from_base = None
        place = self.places.get(member.name)
        if place is not None:
            norm = float(self.near.norms[place])
            from_mean = _over(self.near.from_mean[place], norm)
            if self.near.from_base is not None:
                from_base = _over(self.near.from_base[place], norm)
        return MemberFacts(
            name=member.name,
            path=str(member.path),
            norm=norm,
            from_mean=from_mean,
            from_base=from_base,
            score=None if member.score is None else float(member.score),
            split=_text(member.split),
            init=_text(member.init),
            hparams=_numbers(hparams),
            broken=self.broken.get(member.name, ""),
        )

    def _of_pair(self, one: Member, other: Member) -> PairFacts:
        agree = self.agreement.together(one, other)
        told = one.init is not None and other.init is not None
        same = one.init == other.init if told else None
        a, b = self.places.get(one.name), self.places.get(other.name)
        if a is None or b is None:
            return PairFacts(one=one.name, other=other.name, agree=agree, same_init=same)
        bond = self.kin.bond(a, b)
        siblings = bond is not None and bond.correlation >= 2 * APART
        turned = self.near.base_angles
        return PairFacts(
            one=one.name,
            other=other.name,
            agree=agree,
            same_init=same,
            distance=float(self.near.relative[a, b]),
            angle=float(self.near.angles[a, b]),
            base_angle=None if turned is None else float(turned[a, b]),
            correlation=bond.correlation if bond else None,
            sigma=bond.sigma if bond else None,
            power=bond.power if bond else None,
            apart=tuple(self.kin.below(a, b, APART)) if siblings else (),
            statistics=float(self.statistics.relative[a, b]) if self.statistics.tensors else None,
        )


def _network(member: Member) -> str:
    """Which network and classes a file tells of; shapes don't show the order of classes."""
    return json.dumps(member.about["model"], sort_keys=True) if "model" in member.about else ""


def _over(distance: float, norm: float) -> float:
    return float(distance) / norm if norm else 0.0


def _text(told: object) -> str | None:
    return None if told is None else str(told)


def _numbers(told: Any) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    numbers = {str(k): v for k, v in told.items() if isinstance(v, int | float)}
    # JSON has integers of any length.
    return {k: float(v) for k, v in numbers.items() if isinstance(v, float) or abs(v) < 2**63}
