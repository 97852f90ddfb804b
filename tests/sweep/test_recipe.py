"""Recipes: what they say, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diwa.algorithms.erm import ERM
from diwa.data.benchmark import Benchmark
from diwa.errors import SpecError
from diwa.seeding import seed_hash
from diwa.sweep.choices import Range, distribution, parsed, spelled
from diwa.sweep.plan import plan
from diwa.sweep.recipe import find_recipe, packaged, parse_recipe, read_recipe
from diwa.sweep.spec import SweepSpec


class TestReading:
    def test_one_sweep_by_the_names_of_the_flags(self) -> None:
        recipe = parse_recipe(
            """
            about = "mine"
            data = "photos"
            target = "sketch"
            runs = 6
            size = [96, 128]
            [hparams]
            lr = { low = 1e-5, high = 1e-3, log = true }
            dropout = [0, 0.1]
            weight_decay = 0
            """,
            name="photos",
        )
        assert recipe.about == "mine"
        (part,) = recipe.parts
        assert (part.name, part.data) == ("photos", "photos")
        assert part.spec == SweepSpec(
            target=("sketch",),
            runs=6,
            size=(96, 128),
            hparams={
                "lr": Range(low=1e-5, high=1e-3, log=True),
                "dropout": (0.0, 0.1),
                "weight_decay": (0.0,),
            },
        )

    def test_several_share_what_stands_above_and_each_may_say_otherwise(self) -> None:
        recipe = parse_recipe(
            """
            data = ["PACS", "VLCS"]
            target = "all"
            runs = 6
            [[sweep]]
            init = "random"
            [[sweep]]
            name = "five"
            data = "PACS"
            runs = 5
            hparams = { lr = 0.1 }
            """
        )
        assert [(part.name, part.data) for part in recipe.parts] == [
            ("1", "PACS"),
            ("1", "VLCS"),
            ("five", "PACS"),
        ]
        assert [part.spec.runs for part in recipe.parts] == [6, 6, 5]
        assert [part.spec.init for part in recipe.parts] == ["random", "random", "lp"]
        assert [part.spec.hparams for part in recipe.parts] == [{}, {}, {"lr": (0.1,)}]

    def test_every_setting_of_a_sweep_can_be_written(self) -> None:
        plain = SweepSpec(target=("all",))
        for field in SweepSpec.__struct_fields__:
            value = getattr(plain, field)
            if isinstance(value, str | int | float):
                text = f'target = "all"\n{field} = {str(value).lower()}'
                if isinstance(value, str):
                    text = f'target = "all"\n{field} = "{value}"'
                (part,) = parse_recipe(text).parts
                assert part.spec == plain, field

    def test_a_target_may_be_left_to_the_flags(self) -> None:
        (part,) = parse_recipe("runs = 2", target=("sketch",)).parts
        assert part.spec.target == ("sketch",)
        with pytest.raises(SpecError, match="recipe: no target; name the domain"):
            parse_recipe("runs = 2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stpes = 5", "r.toml: has no field 'stpes'; did you mean 'steps'?"),
        ("[[sweeps]]\nruns = 5", "r.toml: has no field 'sweeps'; did you mean 'sweep'?"),
        ("colour = 5", "r.toml: has no field 'colour'; it has about, sweep, name, data, target"),
        ("[[sweep]]\n[[sweep]]\nrnus = 5", "r.toml: [[sweep]] 2: has no field 'rnus'; did you"),
        ('runs = "5"', "r.toml: runs: Expected `int`, got `str`"),
        ("[[sweep]]\nruns = 5.5", "r.toml: [[sweep]] 1: runs: Expected `int`, got `float`"),
        ("runs = 0", "r.toml: runs=0; give 1 or more"),
        ('init = "randm"', "r.toml: init: 'randm'; did you mean 'random'? choose one of lp"),
        ("channels = 4", "r.toml: channels: 4; choose one of 1, 2, 3"),
        ('protocol = "relaesed"', "r.toml: protocol: 'relaesed'; did you mean 'released'? choose"),
        ("data = 5", "r.toml: data: 5; name a data set, or several in a list"),
        ("data = []", "r.toml: data: []; name a data set"),
        ("about = 5", "r.toml: about: 5; give a line of text"),
        ("[sweep]\nruns = 5", "r.toml: sweep: is no list of tables; write [[sweep]]"),
        ('name = ""', "r.toml: name: ''; give a word"),
        (
            '[[sweep]]\nname = "a"\n[[sweep]]\nname = "a"',
            "r.toml: two sweeps are called 'a'; name them apart",
        ),
        ("hparams = 5", "r.toml: hparams: 5; write [hparams]"),
        ('hparams = { lr = "high" }', "r.toml: hparams.lr: 'high'; give a number, a list, or"),
        ("hparams = { lr = true }", "r.toml: hparams.lr: True; give a number, a list, or"),
        ('hparams = { lr = ["high"] }', "r.toml: hparams.lr: Expected `float`, got `str`"),
        ("hparams = { lr = [] }", "r.toml: hparams lr: no values; give at least one"),
        (
            "hparams = { lr = { low = 1, hihg = 2 } }",
            "r.toml: hparams.lr: Object contains unknown field `hihg`",
        ),
        (
            "hparams = { lr = { low = 2, high = 1 } }",
            "r.toml: hparams.lr: low=2: is above high=1; swap the two",
        ),
        (
            "hparams = { lr = { low = 0, high = 1, log = true } }",
            "r.toml: hparams.lr: low=0: has no logarithm; give more than 0",
        ),
        ("runs = ", "r.toml: Invalid value (at line 2, column 8)"),
        ("target = 'a'", "r.toml: Cannot overwrite a value"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'target = "sketch"\n{text}\n')
    with pytest.raises(SpecError) as caught:
        read_recipe(path)
    told = str(caught.value).removeprefix(f"{tmp_path}/")
    assert told.startswith(says)
    assert "\n" not in told
    assert told.count("; ") <= 1


def test_what_is_no_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"r\.toml: .*decode"):
        read_recipe(path)
    with pytest.raises(SpecError, match=r"none\.toml: no such recipe; give a file, or a name"):
        find_recipe(str(tmp_path / "none.toml"))
    with pytest.raises(SpecError, match="can't be read"):
        read_recipe(tmp_path)


def test_a_recipe_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert find_recipe("sam-table") == packaged()["sam-table"]
    mine = tmp_path / "mine.toml"
    mine.write_text("")
    assert find_recipe(str(mine)) == mine
    with pytest.raises(SpecError, match="did you mean 'sam-table'"):
        find_recipe("sam-tabel")


class TestOwnHyperparameters:
    def test_are_drawn_from_their_own_generators(self, shapes: Benchmark) -> None:
        own = {
            "lr": Range(low=1e-5, high=10**-3.5, log=True),
            "weight_decay": Range(low=0, high=1e-2),
            "dropout": (0.0, 0.1, 0.5),
            "batch_size": Range(low=8, high=2**5.5, log=True),
        }
        spec = SweepSpec(target=("sketch",), weights="none", trials=2, runs=10, hparams=own)
        for run in plan(spec, shapes, device="cpu"):
            assert run.hparams_seed is not None

            def state(name: str, seed: int = seed_hash(run.hparams_seed, run.task.trial)) -> object:
                return np.random.RandomState(seed_hash(seed, name))

            chance: dict = {
                name: state(name) for name in ("lr", "weight_decay", "resnet_dropout", "batch_size")
            }
            # As DomainBed's own code draws from such ranges.
            assert run.hparams == {
                "lr": pytest.approx(10 ** chance["lr"].uniform(-5, -3.5), rel=1e-12),
                "weight_decay": chance["weight_decay"].uniform(0, 1e-2),
                "dropout": chance["resnet_dropout"].choice([0.0, 0.1, 0.5]),
                "batch_size": int(2 ** chance["batch_size"].uniform(3, 5.5)),
            }

    def test_replace_the_defaults_of_the_released_codes_first_run(self, shapes: Benchmark) -> None:
        spec = SweepSpec(
            target=("sketch",), weights="none", protocol="released", hparams={"lr": (0.5,)}
        )
        first, second, *_ = plan(spec, shapes, device="cpu")
        assert first.hparams == {"lr": 0.5, "weight_decay": 0, "dropout": 0, "batch_size": 32}
        assert second.hparams["lr"] == 0.5

    def test_a_count_is_cut_to_a_whole_number(self) -> None:
        held = ERM.space["batch_size"]
        for own in (Range(low=8, high=64), Range(low=8, high=64, log=True)):
            chance = np.random.RandomState(0)
            drawn = [distribution(own, held).draw(chance) for _ in range(50)]
            assert all(type(value) is int and 8 <= value < 64 for value in drawn)
            assert len(set(drawn)) > 10

    def test_flags_say_what_recipes_say(self) -> None:
        own = parsed(["lr=1e-5..1e-3:log", "dropout=0,0.1", "weight_decay=0..0.5", "alpha=1"])
        assert own == {
            "lr": Range(low=1e-5, high=1e-3, log=True),
            "dropout": (0.0, 0.1),
            "weight_decay": Range(low=0, high=0.5),
            "alpha": (1.0,),
        }
        assert parsed(spelled(own)) == own

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("lr", "'lr' is not NAME=VALUE"),
            ("lr=", "'lr=' is not NAME=VALUE"),
            ("lr=a,b", "'lr=a,b' is not NAME=VALUE"),
            ("lr=1..", "'lr=1..' is not NAME=VALUE"),
            ("lr=1..2:lg", "'lr=1..2:lg' is not NAME=VALUE"),
            ("lr=1,2:log", "'lr=1,2:log' is not NAME=VALUE"),
            ("lr=2..1", "lr: low=2: is above high=1; swap the two"),
            ("lr=0..1:log", "lr: low=0: has no logarithm"),
            ("lr=0..inf", "lr: high=inf; give a finite number"),
        ],
    )
    def test_a_flag_that_makes_no_sense(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says.replace("..", r"\.\.")):
            parsed([text])
