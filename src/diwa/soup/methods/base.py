"""What every merge method is: a pure function of one stretch of numbers from every member."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from diwa.spec import Spec
from diwa.weights.kinds import widened
from diwa.weights.sums import summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How the names of batch norm's running statistics end, in every network that torch makes.
VARIANCE = "running_var"
RUNNING = ("running_mean", VARIANCE)
#: How many numbers of every member stand side by side in `Stretch.rows`: all fit into a cache.
_SIDE_BY_SIDE = 1 << 13


@dataclass(frozen=True)
class Stretch:
    """The same numbers of one tensor from every member.

    Args:
        name: the tensor's.
        number: which stretch of the tensor this is.
        members: the numbers as stored, in an order that does not depend on the arguments'; rows of
            a matrix for methods that work by rows, else in one row.
        places: where each of them stood among the arguments.
        base: the base's numbers, where there is one that has this tensor.
        extra: numbers from the method's own files, in the order of `members`; all of them for
            methods that work by rows, else those that belong here.
    """

    name: str
    number: int
    members: Sequence[NDArray]
    places: Sequence[int]
    base: NDArray | None = None
    extra: Sequence[NDArray] = ()

    def __iter__(self) -> Iterator[NDArray]:
        """Each member's numbers in float32, or float64 if they were; not to be written to."""
        return (widened(numbers) for numbers in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def origin(self) -> NDArray:
        """The base's numbers in float64."""
        assert self.base is not None
        return self.base.astype(np.float64)

    def rows(self) -> Iterator[NDArray]:
        """Every member's numbers as a row, less the base's where there is one; a few at a time."""
        for start in range(0, max(self.members[0].size, 1), _SIDE_BY_SIDE):
            part = slice(start, start + _SIDE_BY_SIDE)
            rows = np.array([widened(numbers[part]) for numbers in self.members], dtype=np.float64)
            if self.base is not None:
                rows -= widened(self.base[part])
            yield rows

    def mean(self) -> NDArray:
        """The members' mean in float64."""
        return summed(self.members, divisor=len(self))


class Method(Spec, frozen=True, kw_only=True):
    """The base of every merge method; its fields are its settings, and its flags.

    A method may look at a tensor as a whole in `study`, and then blends it stretch by stretch;
    what it gives must depend on nothing else, so that neither the number of threads nor the order
    of the members changes a bit. Sums are in float64.
    """

    name: ClassVar[str]
    #: Whether it works on differences to a base.
    wants_base: ClassVar[bool] = False
    #: Whether NaN or infinity in a member always shows in the result.
    linear: ClassVar[bool] = True
    #: Its settings that have a value for each member, in their order.
    each: ClassVar[tuple[str, ...]] = ()
    #: Whether it works on whole rows of matrices; other tensors get the plain mean.
    by_rows: ClassVar[bool] = False
    #: Whether tensors without statistics get the plain mean, instead of being refused.
    sparing: ClassVar[bool] = False

    def check(self, count: int) -> None:
        """Makes sure that the settings suit so many members.

        Raises:
            SpecError: naming the setting.
        """
        del count

    def coefficients(self, count: int) -> tuple[float, ...] | None:
        """How much of each member goes in, where that is the same everywhere."""
        del count
        return None

    def statistics(self) -> tuple[str, ...]:
        """Files that the method reads beside the members, one for each, in their order."""
        return ()

    def statistics_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of what is known of a tensor of that shape; None if it can't have any."""
        return shape

    def study(self, stretches: Sequence[Stretch]) -> Any:
        """What must be known of a whole tensor before any of it is blended."""
        del stretches

    @abstractmethod
    def blend(self, stretch: Stretch, known: Any) -> NDArray:
        """The merged numbers, in float64.

        Args:
            stretch: what to blend.
            known: what `study` found out about the whole tensor.
        """
