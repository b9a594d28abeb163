"""``horovod.tensorflow.gradient_aggregation_eager``: the path that scripts know.

One implementation serves graphs, functions and eager execution.
"""

from __future__ import annotations

from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """:class:`LocalGradientAggregationHelper` under its other name."""
