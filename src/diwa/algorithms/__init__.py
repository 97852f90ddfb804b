"""What to minimise and how to step; one file per algorithm, hyperparameters beside it."""

from diwa.algorithms.composed import AlgorithmRegistry
from diwa.registry import Registry

#: What can wrap any algorithm. A third party adds one by an entry point in this group.
WRAPPERS = Registry("wrapper", {"SAM": "diwa.algorithms.sam:SAM"}, group="diwa.wrappers")

#: Every algorithm by name. A third party adds one by an entry point in this group.
ALGORITHMS = AlgorithmRegistry(
    {
        "ERM": "diwa.algorithms.erm:ERM",
        "Mixup": "diwa.algorithms.mixup:Mixup",
        "CORAL": "diwa.algorithms.coral:CORAL",
        "MMD": "diwa.algorithms.mmd:MMD",
        "DANN": "diwa.algorithms.dann:DANN",
        "IRM": "diwa.algorithms.irm:IRM",
        "VREx": "diwa.algorithms.vrex:VREx",
        "GroupDRO": "diwa.algorithms.groupdro:GroupDRO",
        "Fishr": "diwa.algorithms.fishr:Fishr",
    },
    wrappers=WRAPPERS,
    plain="ERM",
    group="diwa.algorithms",
)
