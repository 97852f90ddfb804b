"""OfficeHome: things of home and office, as art, clip art, products and in the real world."""

from __future__ import annotations

from diwa.data.sets.base import DataSet, Published, Remote, drive

_CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards
Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder
Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug
Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler
Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys
Trash_Can Webcam
"""

OFFICE_HOME = DataSet(
    name="OfficeHome",
    folder="office_home",
    domains={"Art": "A", "Clipart": "C", "Product": "P", "Real World": "R"},
    domains_also={"Real World": ("real",)},
    classes=tuple(_CLASSES.split()),
    published=(
        Published(
            by="Venkateswara et al. 2017",
            domains={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        ),
    ),
    remotes=(
        Remote(
            name="office_home.zip",
            urls=(drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),),
            about="1.1 GB",
        ),
    ),
    size="1.1 GB",
    homepage="https://www.hemanthdv.org/officeHomeDataset.html",
)
