"""The one training loop, what it will hold and cost, and a training that uses all of it."""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "account": ("Acted", "DryRun", "Holdings", "Likened", "Work", "difference"),
        "every_replica": ("of_each_replica",),
        "forms": ("along", "of_terms"),
        "lens": ("Lens",),
        "optimizer": ("Optimizer",),
        "recipe": ("Recipe", "Sample", "train"),
        "rehearsal": (
            "HALVES",
            "WHOLE",
            "Like",
            "Part",
            "Rehearsal",
            "Rehearsed",
            "rehearsals",
            "rehearse",
        ),
    },
)
