"""`diwa merge`, `diwa check` and `diwa show`, as a person or a script uses them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import diwa
from diwa.cli.main import main
from diwa.weights.member import said_by
from diwa.weights.writer import FileWriter

Make = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def three(make_member: Make) -> list[str]:
    """Members whose plain mean is easy to see."""
    return [
        str(make_member(name, {"score": 0.5}, **{"fc.weight": [value, -value], "n": [7]}))
        for name, value in (("a", 1.0), ("b", 2.0), ("c", 6.0))
    ]


def values(path: Path, name: str = "fc.weight") -> list[float]:
    return diwa.open_source(path).array(name).tolist()


def test_merge_then_show(three: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "merged.safetensors"
    assert main(["merge", *three, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: uniform merge of 3 files\n"
    assert values(out) == [3.0, -3.0]
    assert main(["show", str(out), "--tensors"]) == 0
    shown = capsys.readouterr().out
    for path in three:
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] in shown
    assert f"made by diwa {diwa.__version__}: uniform" in shown
    assert shown.count("0.3333") == 3
    assert "fc.weight" in shown


def test_show_tells_the_rules(three: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "merged.safetensors"
    torch.save({"x": torch.ones(1)}, tmp_path / "more.pt")
    taken = ["--take-from", three[1], "fc.*", "--take-from", str(tmp_path / "more.pt"), "x"]
    rules = ["--skip", "n*", "f?.*", "--dtype", "bf16"]
    assert main(["merge", *three, "--out", str(out), *taken, *rules]) == 0
    capsys.readouterr()
    assert main(["show", str(out)]) == 0
    shown = capsys.readouterr().out
    sha = hashlib.sha256(Path(three[1]).read_bytes()).hexdigest()[:16]
    assert f"  'fc.*' from  b.safetensors  sha256 {sha}…\n" in shown
    assert "  'x' from  more.pt  sha256 " in shown
    assert "  skip: n*  f?.*\n  dtype: bf16\n" in shown


def test_show_tells_of_a_last_layer_that_was_trained_again(
    make_member: Make, three: list[str], tmp_path: Path, capsys: Capture
) -> None:
    merged = diwa.merge(three).save(tmp_path / "merged.safetensors")
    about = {
        "model": {"backbone": "resnet50", "classes": ["a", "b"]},
        "retrained": {
            "domain": "[b]sketch",
            "images": 1571,
            "strength": 0.01,
            "tensors_sha256": "0" * 64,
            "of": {**said_by(diwa.open_source(merged)), "score": 0.918},
        },
    }
    assert main(["show", str(make_member("head", about, w=[1.0]))]) == 0
    shown = capsys.readouterr().out
    assert "last layer trained again on 1,571 images of [b]sketch, strength 0.01\n" in shown
    assert f"the encoder is that of a soup\nmade by diwa {diwa.__version__}: uniform, of" in shown
    assert shown.count("0.3333") == 3
    assert "validation accuracy before: 91.8 %" in shown


@pytest.mark.parametrize(
    "about",
    [
        {"soup": 5},
        {"soup": {"members": [1]}},
        {"soup": {"members": [{"name": "x", "coefficient": "y"}]}},
        {"soup": {"members": [{"name": "x", "sha256": 5}]}},
        {"soup": {"settings": [1]}},
        {"soup": {"skip": [1]}},
        {"soup": {"taken": [{"name": "x"}]}},
        {"soup": {"base": 1}},
        {"model": [1]},
        {"model": {"classes": 5}},
        {"score": "x"},
        {"retrained": {}},
        {"retrained": {"images": "many", "domain": "d", "strength": 1.0, "of": {}}},
        {"retrained": {"images": 1, "domain": "d", "strength": 1.0, "of": 5}},
    ],
    ids=str,
)
def test_show_of_a_file_that_says_odd_things_of_itself(
    make_member: Make, about: dict[str, object], capsys: Capture
) -> None:
    path = make_member("odd", about, w=[1.0])
    assert main(["show", str(path)]) == 1
    said = capsys.readouterr()
    why = f"{path}: what it says of itself is nothing that diwa writes"
    remedy = "mistrust it; --json shows it as it is"
    assert (said.out, said.err) == ("", f"error: {why}; {remedy}\n")
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["about"] == about


@pytest.mark.parametrize("flags", [["--only"], ["--skip", "--json"]])
def test_a_flag_without_its_pattern(three: list[str], flags: list[str], capsys: Capture) -> None:
    assert main(["merge", *three, "--out", "x", *flags]) == 1
    why = f"{flags[0]}: no pattern after it; give one, e.g. 'head.*'"
    assert capsys.readouterr().err == f"error: {why}\n"


def test_no_files(three: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main(["merge", "--out", "x", "--only", "fc.*", *three]) == 1
    why = "no FILE to merge; name them before the flags: diwa merge FILE FILE --out OUT"
    assert capsys.readouterr().err == f"error: {why}\n"
    assert main(["check"]) == 3
    assert capsys.readouterr().err == "error: no FILE to check; name them before the flags\n"
    assert main(["check", *three, "--model", "resnet50"]) == 3
    why = "model resnet50: nothing to measure it with; pass --data FOLDER"
    assert capsys.readouterr().err == f"error: {why}\n"


def test_check_of_copies_suggests_no_merge(
    three: list[str], tmp_path: Path, capsys: Capture
) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(three[0]).read_bytes())
    assert main(["check", three[0], str(copy)]) == 0
    shown = capsys.readouterr().out
    assert "Nothing to gain" in shown
    assert "next:" not in shown


def test_ctrl_c_says_that_nothing_was_written(
    three: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileWriter, "put", stopped)
    out = tmp_path / "out" / "merged.safetensors"
    assert main(["merge", *three, "--out", str(out)]) == 130
    assert capsys.readouterr().err == "stopped; nothing was written\n"
    assert list(out.parent.iterdir()) == []


def test_everything_for_machines(three: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "merged.safetensors"
    flags = ["--method", "weighted", "--weights", "3", "1", "0", "--out", str(out), "--json"]
    assert main(["merge", *three, *flags]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["out"] == str(out)
    shares = {member["name"]: member["coefficient"] for member in said["soup"]["members"]}
    assert shares == {"a.safetensors": 0.75, "b.safetensors": 0.25, "c.safetensors": 0.0}
    assert main(["show", str(out), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["about"]["soup"] == said["soup"]
    assert described["files"] == {out.name: hashlib.sha256(out.read_bytes()).hexdigest()}


def test_any_mix_of_files(three: list[str], tmp_path: Path, capsys: Capture) -> None:
    torch.save(
        {
            "state_dict": {
                "module.fc.weight": torch.tensor([3.0, 5.0]),
                "module.n": torch.ones(1).long() * 7,
            }
        },
        tmp_path / "d.ckpt",
    )
    out = tmp_path / "out" / "merged.safetensors"
    assert (
        main(
            ["merge", str(tmp_path / "*.safetensors"), str(tmp_path / "d.ckpt"), "--out", str(out)]
        )
        == 0
    )
    assert "uniform merge of 4 files" in capsys.readouterr().out
    assert values(out) == [3.0, -1.0]
    assert len(three) == 3


def test_rules(three: list[str], make_member: Make, tmp_path: Path, capsys: Capture) -> None:
    head = make_member("head", **{"fc.weight": [9.0, 9.0]})
    out = tmp_path / "merged.safetensors"
    assert main(["merge", *three, "--out", str(out), "--skip", "fc.*", "--dtype", "bf16"]) == 0
    assert values(out) == [1.0, -1.0]
    assert str(diwa.open_source(out).tensors["fc.weight"]) == "BF16 (2,)"
    taken = ["--take-from", str(head), "fc.*"]
    assert main(["merge", *three, "--out", str(out), *taken]) == 0
    assert values(out) == [9.0, 9.0]
    capsys.readouterr()


def test_a_note_on_integers_that_differ(make_member: Make, tmp_path: Path, capsys: Capture) -> None:
    paths = [str(make_member(name, w=[1.0], n=[count])) for name, count in (("a", 1), ("b", 2))]
    out = tmp_path / "merged.safetensors"
    assert main(["merge", *paths, "--out", str(out)]) == 0
    assert "note: integers that differ are the first member's: n\n" in capsys.readouterr().out
    assert values(out, "n") == [1]


def test_a_method_shows_its_own_flags(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["merge", "--method", "ties", "--help"])
    shown = capsys.readouterr().out
    assert "--density" in shown
    for name in ("uniform", "weighted", "interpolate", "arithmetic", "ties", "dare", "fisher",
                 "regmean", "slerp", "stock"):  # fmt: skip
        assert name in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.safetensors"], "nowhere.safetensors: no such file; "),
        (["*.nothing"], "*.nothing: no file matches; "),
        (["{a}", "{a}"], "is the same file as"),
        (["{a}"], "a.safetensors: a single member, nothing to merge it with; name two or more"),
        (["{a}", "{b}", "--method", "tise"], "is called 'tise'; did you mean 'ties'?"),
        (["{a}", "{b}", "--method", "ties"], "pass --base FILE"),
        (["{a}", "{b}", "--method", "slerp", "--base", "{c}"], "leave --base out"),
        (["{a}", "{b}", "--method", "weighted", "--weights", "1", "-1"], "weights (1.0, -1.0)"),
        (["{a}", "{b}", "--skip", "fd.*"], "skip 'fd.*': matches none of the 2 tensors; "),
        (["{a}", "{b}", "--dtype", "float"], "dtype 'float'; choose one of fp8_e4m3"),
        (["{a}", "{b}", "--shard-size", "two"], "shard size 'two'; give one like 500MB or 2GB"),
        (["{a}", "{b}", "--out", "{a}"], "is one of the members"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    three: list[str], tmp_path: Path, capsys: Capture, arguments: list[str], says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    named = dict(zip("abc", three, strict=True))
    given = [argument.format(**named) for argument in arguments]
    out = [] if "--out" in given else ["--out", "out.safetensors"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["merge", *given, *out]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def siblings(make_member: Make, count: int, *, stranger: bool = False) -> list[str]:
    """Networks that were trained from one start; the last one from another, if told."""
    chance = torch.Generator().manual_seed(0)
    start = torch.randn(64, 64, generator=chance)
    paths = []
    for number in range(count):
        if stranger and number == count - 1:
            start = torch.randn(64, 64, generator=chance)
        moved = start + 0.02 * torch.randn(64, 64, generator=chance)
        paths.append(str(make_member(f"m{number}", **{"layer.weight": moved})))
    return paths


def test_check_says_merge(make_member: Make, capsys: Capture) -> None:
    paths = siblings(make_member, 3)
    assert main(["check", *paths]) == 0
    shown = capsys.readouterr().out
    sentence = next(line for line in shown.splitlines() if line.startswith("Merge all 3: "))
    assert "descend from one initialisation" in sentence
    assert "next: diwa merge " in shown


def test_a_verdict_in_a_file_and_in_a_narrow_terminal(
    make_member: Make, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = siblings(make_member, 4, stranger=True)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["check", *paths]) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) > 72
    heading = next(line for line in shown.splitlines() if "pair" in line)
    assert heading.split() == ["pair", "apart", "angle", "one", "origin", "correlation", "sigma"]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    main(["check", *paths])
    shown = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", shown).splitlines()
    # Paths are not to be broken.
    assert max(len(line) for line in plain if "/" not in line) <= 60
    assert "  1 - 4 " in "\n".join(plain)
    assert any(line.rstrip().endswith("other origin") for line in plain)


def test_check_of_a_hyperparameter_of_any_length(make_member: Make, capsys: Capture) -> None:
    paths = [
        str(make_member(name, {"run": {"hparams": {"lr": lr, "n": 10**400}}}, w=[1.0, lr]))
        for name, lr in (("a", 0.5), ("b", 0.25))
    ]
    main(["check", *paths, "--json"])
    told = json.loads(capsys.readouterr().out)["evidence"]["members"]
    assert [member["hparams"] for member in told] == [{"lr": 0.5}, {"lr": 0.25}]


def test_check_leaves_a_stranger_out(make_member: Make, capsys: Capture) -> None:
    paths = siblings(make_member, 4, stranger=True)
    assert main(["check", *paths]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "leave out m3.safetensors" in shown
    assert "does not descend from the same initialisation" in shown
    command = re.search(r"next: diwa merge .*", shown)
    assert command
    assert "m3.safetensors" not in command[0]
    assert main(["check", *paths, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["merge"] == ["m0.safetensors", "m1.safetensors", "m2.safetensors"]


def test_check_says_ensemble(make_member: Make, capsys: Capture) -> None:
    paths = siblings(make_member, 2, stranger=True)
    assert main(["check", *paths]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "Ensemble m0.safetensors and m1.safetensors instead" in shown


def test_check_that_finds_nothing_out_has_a_code_of_its_own(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["check", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_show_has_nothing_that_a_terminal_would_act_on(make_member: Make, capsys: Capture) -> None:
    path = make_member("odd", {"soup": {"members": [{"name": "\x1b[31m[bold]x"}]}}, w=[1.0])
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[bold]x" in shown


def test_merging_starts_without_torch(three: list[str], tmp_path: Path) -> None:
    """The start of the interpreter is most of the time that a merge takes."""
    program = (
        "import sys; from diwa.cli.main import main; "
        f"code = main(['merge', *{three!r}, '--out', {str(tmp_path / 'o.safetensors')!r}]); "
        "print(code, sorted({'torch', 'timm', 'torchvision', 'rich.progress', 'matplotlib', 'ray'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
