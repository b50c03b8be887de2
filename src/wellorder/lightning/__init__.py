"""wellorder.lightning: one callback that keeps, saves and logs the order of Lightning's training data."""

try:
    import lightning as _lightning  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise ModuleNotFoundError(
        "wellorder.lightning needs Lightning: pip install lightning", name="lightning"
    ) from error

from wellorder.lightning._callback import OrderCallback

__all__ = ["OrderCallback"]
