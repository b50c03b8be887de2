"""wellorder.transformers: the Hugging Face Trainer with a better order than its shuffle."""

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "wellorder.transformers needs transformers and accelerate: pip install 'transformers[torch]'",
        name="transformers",
    ) from error

from wellorder.transformers._trainer import Ordered, OrderedTrainer

__all__ = ["Ordered", "OrderedTrainer"]
