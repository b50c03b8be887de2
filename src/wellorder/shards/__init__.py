"""wellorder.shards: data too large to shuffle, read shard by shard in a good order."""

from wellorder.shards._formats import RowGroup, hugging_face, row_groups
from wellorder.shards._order import ordered_shards
from wellorder.shards._reading import ShardError
from wellorder.shards._survey import Survey, survey
from wellorder.shards._window import expected_error, suggested_window

__all__ = [
    "RowGroup",
    "ShardError",
    "Survey",
    "expected_error",
    "hugging_face",
    "ordered_shards",
    "row_groups",
    "suggested_window",
    "survey",
]
