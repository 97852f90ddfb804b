"""The protocol's presets: what differs between them. Every task names the one it follows.

How they draw hyperparameters is in `algorithms/hparams.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PresetName = Literal["fixed", "paper", "released"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What one preset does where others do something else.

    Args:
        domainnet_steps: updates of a run on DomainNet.
        shares_init: whether all runs of a trial, or of a target in all trials, start alike.
        probes_common: whether linear probing for several trials keeps to images that all of them
            train on; else it sees the first trial's, some of which validate in the others.
        augmented_validation: whether the source domains validate with the training augmentation on.
        adapts_space: whether short runs draw other learning rates than the paper's.
    """

    domainnet_steps: int = 15001
    shares_init: Literal["trial", "target"] = "target"
    probes_common: bool = False
    augmented_validation: bool = False
    adapts_space: bool = False

    def steps(self, data: str) -> int:
        """Updates of a run on that data set.

        Example:
            >>> PRESETS["paper"].steps("DomainNet"), PRESETS["released"].steps("domain_net")
            (15001, 5001)
            >>> PRESETS["paper"].steps("PACS")
            5001
        """
        return self.domainnet_steps if plain_name(data) == "domainnet" else 5001


PRESETS: dict[PresetName, Preset] = {
    # The paper's protocol, with the released code's defects repaired.
    "fixed": Preset(shares_init="trial", probes_common=True, adapts_space=True),
    # What the paper says; where it is silent, what its code did.
    "paper": Preset(),
    # What the code did.
    "released": Preset(domainnet_steps=5001, augmented_validation=True),
}


def plain_name(data: str) -> str:
    """A data set's name in the one spelling that is compared."""
    return data.lower().replace("_", "")
