"""The dependent policies equal loops-and-lists transcriptions of the corrected algorithms."""

import pytest

from wellorder import GraB, GraBProto, PairGraB, PairGraBProto, sgd, shuffled
from wellorder.problems import quadratics

EPOCHS = 10


def dot(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True))


def plus(u, v, scale=1.0):
    return [a + scale * b for a, b in zip(u, v, strict=True)]


def assign_sign(s, z):
    """alg:assign sign^2: +1 iff ‖s + z‖ < ‖s − z‖; a tie gives −1."""
    return 1 if dot(s, z) < 0 else -1


def balance(vectors):
    s, signs = [0.0] * len(vectors[0]), []
    for z in vectors:
        signs.append(assign_sign(s, z))
        s = plus(s, z, signs[-1])
    return signs


def reorder(order, signs):
    positive = [unit for unit, sign in zip(order, signs, strict=True) if sign == +1]
    middle = [unit for unit, sign in zip(order, signs, strict=True) if sign == 0]
    negative = [unit for unit, sign in zip(order, signs, strict=True) if sign == -1]
    return positive + middle + negative[::-1]


def basic_br(order, vectors, mean):
    return reorder(order, balance([plus(z, mean, -1.0) for z in vectors]))


def pair_br(order, vectors, mean):
    centred = [plus(z, mean, -1.0) for z in vectors]
    pairs = len(order) // 2
    tilde = balance([plus(centred[2 * l], centred[2 * l + 1], -1.0) for l in range(pairs)]) if pairs else []
    signs = [0] * len(order)
    for l in range(pairs):
        signs[2 * l], signs[2 * l + 1] = tilde[l], -tilde[l]
    return reorder(order, signs)


def average(vectors):
    total = [0.0] * len(vectors[0])
    for z in vectors:
        total = plus(total, z)
    return [a / len(vectors) for a in total]


class Lists:
    """A problem of lists."""

    def __init__(self, problem):
        self.a, self.b = problem.a.tolist(), problem.b.tolist()
        self.n, self.dim = problem.n, problem.dim

    def gradient(self, unit, x):
        return [2 * a * v + b for a, b, v in zip(self.a[unit], self.b[unit], x, strict=True)]


def grab_placing(problem, order, x, gamma):
    """alg:SGD:GraB: places units as the epoch goes; the running sum takes the centred vector (slip 1)."""
    orders, zero = [], [0.0] * problem.dim
    m = zero
    for _ in range(EPOCHS):
        orders.append(order)
        s, stale, m, l, r = zero, m, zero, 0, problem.n - 1
        new = [None] * problem.n
        for n in range(problem.n):
            g = problem.gradient(order[n], x)
            x = plus(x, g, -gamma)
            m = plus(m, g, 1 / problem.n)
            c = plus(g, stale, -1.0)
            epsilon = assign_sign(s, c)
            s = plus(s, c, epsilon)
            if epsilon == +1:
                new[l] = order[n]
                l += 1
            else:
                new[r] = order[n]
                r -= 1
        order = new
    return orders, x


def grab_reordering(problem, order, x, gamma, reorders=1):
    """alg:SGD:GraB^2: reorders at the epoch's end, perhaps several times with the same signs."""
    orders, zero = [], [0.0] * problem.dim
    m = zero
    for _ in range(EPOCHS):
        orders.append(order)
        s, stale, m, signs = zero, m, zero, []
        for n in range(problem.n):
            g = problem.gradient(order[n], x)
            x = plus(x, g, -gamma)
            m = plus(m, g, 1 / problem.n)
            c = plus(g, stale, -1.0)
            signs.append(assign_sign(s, c))
            s = plus(s, c, signs[-1])
        for _ in range(reorders):
            order = reorder(order, signs)
    return orders, x


def pairgrab_reordering(problem, order, x, gamma, reorders):
    """alg:SGD:PairGraB as alg:SGD:GraB^2 does it; the footnote's several times."""
    orders = []
    for _ in range(EPOCHS):
        orders.append(order)
        s, signs, previous = [0.0] * problem.dim, [], None
        for n in range(problem.n):
            g = problem.gradient(order[n], x)
            x = plus(x, g, -gamma)
            if n % 2:
                d = plus(previous, g, -1.0)
                epsilon = assign_sign(s, d)
                s = plus(s, d, epsilon)
                signs += [epsilon, -epsilon]
            previous = g
        signs += [0] * (problem.n % 2)
        for _ in range(reorders):
            order = reorder(order, signs)
    return orders, x


def pairgrab_placing(problem, order, x, gamma):
    """alg:SGD:PairGraB with PairBR's placement (slip 2); an unpaired last unit keeps the middle (slip 8)."""
    orders = []
    for _ in range(EPOCHS):
        orders.append(order)
        s, l, r = [0.0] * problem.dim, 0, problem.n - 1
        new, previous = [None] * problem.n, None
        for n in range(problem.n):
            g = problem.gradient(order[n], x)
            x = plus(x, g, -gamma)
            if (n + 1) % 2 == 0:
                d = plus(previous, g, -1.0)
                epsilon = assign_sign(s, d)
                s = plus(s, d, epsilon)
                front, back = (order[n - 1], order[n]) if epsilon == +1 else (order[n], order[n - 1])
                new[l], new[r] = front, back
                l, r = l + 1, r - 1
            previous = g
        if problem.n % 2:
            new[l] = order[-1]
        order = new
    return orders, x


def proto(permute):
    """alg:SGD with BasicBR or PairBR of the gradients at the epoch's first point."""

    def run(problem, order, x, gamma):
        orders = []
        for _ in range(EPOCHS):
            orders.append(order)
            fresh = [problem.gradient(unit, x) for unit in order]
            for unit in order:
                x = plus(x, problem.gradient(unit, x), -gamma)
            order = permute(order, fresh, average(fresh))
        return orders, x

    return run


@pytest.mark.parametrize("dim", [1, 50])
@pytest.mark.parametrize("n", [1, 2, 7, 40, 41, 300, 301])
@pytest.mark.parametrize(
    ("policy", "transcription"),
    [
        (GraB(), grab_placing),
        (GraB(), grab_reordering),
        (GraB(reorders=2), lambda *given: grab_reordering(*given, reorders=2)),
        (PairGraB(), pairgrab_placing),
        (PairGraB(reorders=3), lambda *given: pairgrab_reordering(*given, reorders=3)),
        (GraBProto(), proto(basic_br)),
        (PairGraBProto(), proto(pair_br)),
    ],
    ids=[
        "GraB, placing",
        "GraB, reordering",
        "GraB, reordering twice",
        "PairGraB",
        "PairGraB, reordering three times",
        "GraBProto",
        "PairGraBProto",
    ],
)
def test_orders_equal_the_papers_algorithm(policy, transcription, n, dim):
    for seed in range(3):
        problem = quadratics(n, dim, seed=seed)
        first = shuffled(n, seed, 0).tolist()
        orders, x = transcription(Lists(problem), first, [1.0] * dim, 0.1 / n)
        run = sgd(problem, policy, step_size=0.1 / n, epochs=EPOCHS, seed=seed)
        assert run.orders.tolist() == orders
        assert run.x[-1] == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize("n", [7, 40])
def test_the_papers_two_formulations_of_grab_agree(n):
    problem = Lists(quadratics(n, 5, seed=9))
    first = shuffled(n, 0, 0).tolist()
    assert grab_placing(problem, first, [1.0] * 5, 1e-2) == grab_reordering(problem, first, [1.0] * 5, 1e-2)


def test_centring_changes_no_sign_of_pair_br():
    problem = Lists(quadratics(30, 4, seed=2))
    rows = [problem.gradient(unit, [1.0] * 4) for unit in range(30)]
    assert pair_br(list(range(30)), rows, average(rows)) == pair_br(list(range(30)), rows, [0.0] * 4)
