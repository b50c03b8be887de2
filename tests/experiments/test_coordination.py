"""CD-GraB's figure shows what was published: together flat, alone on the way to reshuffling."""

import numpy as np

from wellorder.experiments import _coordination as figure
from wellorder.report._table import curves, joined


def test_together_workers_keep_what_one_has_and_alone_they_lose_it():
    config = figure.CoordinationFigure(n=1024, dim=8, seeds=2, epochs=8)
    table = joined(list(figure.run(config)))
    found = figure.medians(table)
    one, many = found["1 worker"], found["64 workers"]
    assert one["CD-GraB"] == one["PairGraB"]
    assert many["CD-GraB"] < 1.5 * one["CD-GraB"]
    assert many["PairGraB"] > 4 * one["PairGraB"]
    assert one["CD-GraB"] < 0.3 * one["RR"]
    assert many["PairGraB"] > 0.4 * many["RR"]
    alone = [found[figure._name(w)]["PairGraB"] for w in config.workers]
    assert (np.diff(alone) > 0).all()
    for setting in found:  # all begin with one order
        part = figure._part(table, setting)
        first = [curves(part, policy, "order_error")[:, 0] for policy in ("CD-GraB", "PairGraB")]
        assert np.allclose(*first)
