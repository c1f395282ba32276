"""Small real models, and exact accounts of what each stage of them costs."""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "blocks": ("cross_entropy",),
        "classifier": ("Classifier",),
        "config": (
            "EncoderConfig",
            "GPTConfig",
            "TranslatorConfig",
            "require_cuttable",
            "split",
            "tied_weights",
        ),
        "dropout": ("Dropout", "Noise"),
        "encoder": ("Encoder", "class_loss", "encoder_slices"),
        "gpt": ("GPT", "GPTStage", "gpt_slices"),
        "mlp": ("MLPStage", "layered_mlp"),
        "steps": (
            "built",
            "gpt_steps",
            "mlp_steps",
            "peak_bytes",
            "saved_bytes",
            "translator_steps",
        ),
        "shapes": ("parameter_bytes", "parameter_shapes", "parameters", "translator_parameters"),
        "translator": ("Translator", "translator_slices"),
    },
)
