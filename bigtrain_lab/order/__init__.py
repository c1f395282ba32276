"""Orders of events as data (schedules, collectives, recompute plans), their simulator, and what a
trace tells of them: pure."""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "collective": ("Collective", "provenance", "sizes"),
        "explain": ("bubbles", "does_not_fit", "not_finite"),
        "holdings": ("HOLDS", "MOST", "Part", "parts", "place"),
        "partition": (
            "Piece",
            "Stage",
            "balanced",
            "by_sizes",
            "require_sizes",
            "stage_shares",
            "stage_times",
            "worst",
        ),
        "plan": (
            "Compute",
            "Plan",
            "Recv",
            "SLICES",
            "Together",
            "lower",
            "lower_collective",
            "with_calls",
        ),
        "rates": (
            "ACCURACY",
            "Applied",
            "Level",
            "STEP",
            "TEST_LOSS",
            "TRUST",
            "apart",
            "applied",
            "axes",
            "called",
            "checkpoint_bytes",
            "exposed",
            "field",
            "last",
            "of_layers",
            "peak_bytes",
            "reading_rate",
            "samples",
            "sent_so_far",
        ),
        "schedule": ("Action", "B", "F", "Schedule", "Step", "U", "Written", "name_of"),
    },
)
