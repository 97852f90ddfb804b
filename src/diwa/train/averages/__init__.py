"""Averages of a run's own iterates, kept by observers; one file each."""

from diwa.registry import Registry

#: Every average by name. A third party adds one by an entry point in this group.
AVERAGES = Registry(
    "average",
    {
        "ma": "diwa.train.averages.ma:MovingAverage",
        "swad": "diwa.train.averages.swad:Swad",
    },
    group="diwa.averages",
)
