"""100 epochs of `sgd` on N = 1000 quadratics, one seed: CPU seconds, against one Python call a unit."""

from dataclasses import dataclass

from benchmarks.timing import cpu_seconds
from wellorder import (
    GraB,
    IncrementalGradient,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomReshuffling,
    sgd,
)
from wellorder.problems import quadratics


@dataclass
class Plain:
    """The same problem without its fast path."""

    inner: object

    def __getattr__(self, name):
        if name == "steps":
            raise AttributeError(name)
        return getattr(self.inner, name)


def main() -> None:
    problem = quadratics(1000, seed=0)
    print(f"{'policy':>22} {'seconds':>9}")
    for policy in (
        RandomReshuffling(),
        IncrementalGradient(),
        NicePermutation(),
        PairGraBProto(),
        GraB(),
        PairGraB(),
    ):
        spent = cpu_seconds(
            {"sgd": lambda policy=policy: sgd(problem, policy, step_size=1e-3, epochs=100)}, repeats=5
        )
        print(f"{type(policy).__name__:>22} {spent['sgd']:9.3f}")
    calls = {
        "fast": lambda: sgd(problem, PairGraB(), step_size=1e-3, epochs=5),
        "plain": lambda: sgd(Plain(problem), PairGraB(), step_size=1e-3, epochs=5),
    }
    spent = cpu_seconds(calls, repeats=5)
    print(
        f"{'one call a unit':>22} {spent['plain'] / spent['fast']:8.1f}x the fast path's CPU time (PairGraB)"
    )


if __name__ == "__main__":
    main()
