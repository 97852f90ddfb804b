"""Weights from the Hugging Face hub: `hf://owner/repo[@revision][/file]`."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from diwa.errors import WeightsError

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/([^@]+))?")
#: Of the repository's own folder only: others hold parts of a pipeline or other formats.
_ELSEWHERE = "*/*"
_DESCRIBING = ["config.json"]
_SAFE = [*_DESCRIBING, "*.safetensors", "*.safetensors.index.json"]
_PICKLED = [*_DESCRIBING, "pytorch_model*.bin", "pytorch_model.bin.index.json"]


@dataclass(frozen=True)
class HubAddress:
    """Where on the hub.

    Args:
        repo: owner and name.
        revision: a branch, a tag or a commit; None for the newest.
        file: one file of it; empty for the model it holds.

    Example:
        >>> HubAddress.parse("hf://timm/resnet50.a1_in1k@main/model.safetensors")
        HubAddress(repo='timm/resnet50.a1_in1k', revision='main', file='model.safetensors')
    """

    repo: str
    revision: str | None = None
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Reads an address; a slash in a revision is written %2F.

        Raises:
            WeightsError: if it is none.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise WeightsError(
                f"{text}: not an address on the hub",
                remedy="write hf://owner/repo, hf://owner/repo@revision or hf://owner/repo/file",
            )
        repo, revision, file = match.groups()
        return cls(repo, urllib.parse.unquote(revision) if revision else None, file or "")


def fetch(text: str) -> Path:
    """Downloads weights, unless they are here already, and says where they are.

    Args:
        text: the address.

    Returns:
        The file, or the folder that holds the model: its safetensors files, or its old
        `pytorch_model.bin` where there are none, and its config.

    Raises:
        WeightsError: without the package or a network, or if there is nothing at that address.
    """
    address = HubAddress.parse(text)
    if address.file:
        path = _snapshot(text, address, [address.file], None) / address.file
        if not path.is_file():
            raise WeightsError(
                f"{text}: {address.repo} has no file {address.file!r}",
                remedy="look at the list of files on its page, and whether you are online",
            )
        return path
    folder = _snapshot(text, address, _SAFE, _ELSEWHERE)
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(text, address, _PICKLED, _ELSEWHERE)
        if not any(folder.glob("*.bin")):
            raise WeightsError(
                f"{text}: holds neither safetensors nor pytorch_model.bin",
                remedy="name a file of it: hf://owner/repo/file",
            )
    return folder


def _snapshot(text: str, address: HubAddress, patterns: list[str], leave_out: str | None) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise WeightsError(
            f"{text}: needs the package huggingface_hub", remedy="pip install 'diwa[hub]'"
        ) from error
    try:
        # For a single file, too: what downloads one retries for long where there is no network.
        place = huggingface_hub.snapshot_download(
            address.repo,
            revision=address.revision,
            allow_patterns=patterns,
            ignore_patterns=leave_out,
        )
    except errors.GatedRepoError as error:
        raise WeightsError(
            f"{text}: only for those who asked for access",
            remedy="ask for it on its page, then `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise WeightsError(
            f"{text}: the hub has no such repository, or not for you",
            remedy="check its name, or `hf auth login` if it is private",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise WeightsError(
            f"{text}: {address.repo} has no revision {address.revision!r}",
            remedy="check the name of the branch, tag or commit",
        ) from error
    except errors.HFValidationError as error:
        raise WeightsError(
            f"{text}: not an address on the hub", remedy="write hf://owner/repo"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        raise WeightsError(
            f"{text}: can't be downloaded ({_first_line(error)})",
            remedy="check the network, or download it elsewhere and give its folder",
        ) from error
    return Path(place)


def _first_line(error: Exception) -> str:
    lines = str(error).split("\n")
    return lines[0].strip()[:200] or type(error).__name__
