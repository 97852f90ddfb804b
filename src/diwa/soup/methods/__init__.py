"""How several tensors become one: a file per method, each behind the protocol of `base`."""

from diwa.registry import Registry

#: Every merge method by name. A third party adds one by an entry point in this group.
METHODS = Registry(
    "merge method",
    {
        "uniform": "diwa.soup.methods.uniform:Uniform",
        "weighted": "diwa.soup.methods.weighted:Weighted",
        "interpolate": "diwa.soup.methods.interpolate:Interpolate",
        "arithmetic": "diwa.soup.methods.arithmetic:Arithmetic",
        "ties": "diwa.soup.methods.ties:Ties",
        "dare": "diwa.soup.methods.dare:Dare",
        "fisher": "diwa.soup.methods.fisher:Fisher",
        "regmean": "diwa.soup.methods.regmean:RegMean",
        "slerp": "diwa.soup.methods.slerp:Slerp",
        "stock": "diwa.soup.methods.stock:Stock",
    },
    group="diwa.methods",
)
