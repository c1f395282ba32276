"""Small real models, and exact accounts of what each stage of them costs."""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "blocks": ("cross_entropy",),
        "classifier": ("Classifier",),
        "config": ("GPTConfig", "require_cuttable", "split"),
        "dropout": ("Dropout", "Noise"),
        "encoder": ("Encoder", "EncoderConfig", "class_loss", "encoder_slices"),
        "gpt": ("GPT", "GPTStage", "gpt_slices", "tied_weights"),
        "mlp": ("MLPStage", "layered_mlp"),
        "steps": (
            "built",
            "gpt_steps",
            "mlp_steps",
            "parameter_bytes",
            "parameter_shapes",
            "parameters",
            "peak_bytes",
            "saved_bytes",
            "translator_parameters",
            "translator_steps",
        ),
        "theory": ("boundary_bytes",),
        "translator": ("Translator", "TranslatorConfig", "translator_slices"),
    },
)
