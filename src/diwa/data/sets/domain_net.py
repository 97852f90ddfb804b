"""DomainNet: 345 classes in six styles, without the duplicates that DomainBed lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from diwa.data.layout import Arrangement, plain
from diwa.data.sets.base import DataSet, Published, Remote
from diwa.data.sources import Sources
from diwa.errors import DataError

_AT = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
_LIST = "domain_net_duplicates.txt"

_CLASSES = """
The_Eiffel_Tower The_Great_Wall_of_China The_Mona_Lisa aircraft_carrier airplane alarm_clock
ambulance angel animal_migration ant anvil apple arm asparagus axe backpack banana bandage barn
baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain
bread bridge broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar
camel camera camouflage campfire candle cannon canoe car carrot castle cat ceiling_fan cell_phone
cello chair chandelier church circle clarinet clock cloud coffee_cup compass computer cookie cooler
couch cow crab crayon crocodile crown cruise_ship cup diamond dishwasher diving_board dog dolphin
donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope eraser eye
eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe
goatee golf_club grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter
helmet hexagon hockey_puck hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass
house house_plant hurricane ice_cream jacket jail kangaroo key keyboard knee knife ladder lantern
laptop leaf leg light_bulb lighter lighthouse lightning line lion lipstick lobster lollipop mailbox
map marker matches megaphone mermaid microphone microwave monkey moon mosquito motorbike mountain
mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven owl
paint_can paintbrush palm_tree panda pants paper_clip parachute parrot passport peanut pear peas
pencil penguin piano pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond
pool popsicle postcard potato power_outlet purse rabbit raccoon radio rain rainbow rake
remote_control rhinoceros rifle river roller_coaster rollerskates sailboat sandwich saw saxophone
school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep shoe shorts shovel sink
skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak
stereo stethoscope stitches stop_sign stove strawberry streetlight string_bean submarine suitcase
sun swan sweater swing_set sword syringe t-shirt table teapot teddy-bear telephone television
tennis_racquet tent tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor
traffic_light train tree triangle trombone truck trumpet umbrella underwear van vase violin
washing_machine watermelon waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga
zebra zigzag
"""


@dataclass(frozen=True, kw_only=True)
class _DomainNet(DataSet):
    """Leaves the listed duplicates out."""

    def arrange(self, sources: Sources, *, duplicates: Path | None = None) -> Arrangement:
        """The images in their folders, but for those on the list."""
        arrangement = self.arrange_images(sources.images())
        listed = _listed(sources, duplicates)
        if listed is None:
            note = (
                f"duplicates: there is no list of them, so they stay in; published numbers are "
                f"without them (put DomainBed's {_LIST} beside the archives, or pass --duplicates)"
            )
            return replace(arrangement, notes=[*arrangement.notes, note])
        kept = {t: name for t, name in arrangement.files.items() if _key(t) not in listed}
        left_out = len(arrangement.files) - len(kept)
        note = f"duplicates: {left_out:,} of the {len(listed):,} listed were there, and left out"
        return replace(arrangement, files=kept, notes=[*arrangement.notes, note])


def _listed(sources: Sources, told: Path | None) -> set[tuple[str, ...]] | None:
    if told is not None:
        try:
            text = told.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{told}: can't be read as a list of duplicates ({error})",
                remedy="give a text file with domain/class/image in every line",
            ) from error
        return _parsed(text, str(told))
    found = [name for name in sources.names(".txt") if "duplicates" in name.lower()]
    if not found:
        return None
    lines = "\n".join(sources.read(name).decode(errors="replace") for name in found)
    return _parsed(lines, ", ".join(found))


def _parsed(text: str, where: str) -> set[tuple[str, ...]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        if line.count("/") < 2:
            raise DataError(
                f"{where}: line {number} is {line[:60]!r}, not domain/class/image",
                remedy=f"give DomainBed's {_LIST}",
            )
    return {_key(line) for line in lines}


def _key(path: str) -> tuple[str, ...]:
    domain, name, file = path.split("/")[-3:]
    return plain(domain), plain(name), file


DOMAIN_NET = _DomainNet(
    name="DomainNet",
    folder="domain_net",
    domains={
        "clipart": "clip",
        "infograph": "info",
        "painting": "paint",
        "quickdraw": "quick",
        "real": "real",
        "sketch": "sketch",
    },
    classes=tuple(_CLASSES.split()),
    published=(
        Published(
            by="Peng et al. 2019, without duplicates",
            domains={
                "clipart": 48129,
                "infograph": 51605,
                "painting": 72266,
                "quickdraw": 172500,
                "real": 172947,
                "sketch": 69128,
            },
        ),
    ),
    remotes=(
        Remote(name="clipart.zip", urls=(f"{_AT}groundtruth/clipart.zip",), about="1.3 GB"),
        Remote(name="infograph.zip", urls=(f"{_AT}infograph.zip",), about="4.0 GB"),
        Remote(name="painting.zip", urls=(f"{_AT}groundtruth/painting.zip",), about="3.7 GB"),
        Remote(name="quickdraw.zip", urls=(f"{_AT}quickdraw.zip",), about="0.4 GB"),
        Remote(name="real.zip", urls=(f"{_AT}real.zip",), about="5.6 GB"),
        Remote(name="sketch.zip", urls=(f"{_AT}sketch.zip",), about="2.5 GB"),
        Remote(
            name=_LIST,
            urls=(
                "https://raw.githubusercontent.com/facebookresearch/DomainBed/main/domainbed/misc/"
                + _LIST,
            ),
            optional=True,
        ),
    ),
    size="18 GB",
    homepage="https://ai.bu.edu/M3SDA/",
)
