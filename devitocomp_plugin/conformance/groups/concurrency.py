"""Plans in several threads."""
import threading
import time

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import Failed, check
from devitocomp_plugin.conformance.samples import discrepancy, large_shape, make
from devitocomp_plugin.conformance.tensors import a_tensor, tensors

PLANS = 2
SECONDS = 0.3


def in_threads(functions):
    """Run functions at once, and raise what any of them raises."""
    errors = []
    barrier = threading.Barrier(len(functions))

    def run(function):
        try:
            barrier.wait()
            function()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in functions]
    for i in threads:
        i.start()
    for i in threads:
        i.join()
    if errors:
        raise errors[0]


@check('serves plans in two threads at once')
def two_plans(t):
    dtype, rank = tensors(t)[0]
    shape = large_shape(rank)
    benches = [Bench(t.driver, dtype, shape, threads=1) for _ in range(PLANS)]
    data = [make('random', shape, dtype, seed=i) for i in range(PLANS)]
    until = time.monotonic() + SECONDS

    def work(bench, mine, n):
        rounds = 0
        while rounds < 3 or time.monotonic() < until:
            found = bench.decompress(bench.compress(mine))
            wrong = discrepancy(bench.limits, mine, found)
            rounds += 1
            if wrong is not None:
                raise Failed(f'{bench.label}, thread {n}, round {rounds}: {wrong}')

    try:
        in_threads([lambda i=i: work(benches[i], data[i], i) for i in range(PLANS)])
    finally:
        for i in benches:
            t.driver.destroy(i.plan)


@check('compresses in one thread while another decompresses, with plans of their own')
def both_ways(t):
    dtype, rank = tensors(t)[0]
    shape = large_shape(rank)
    data = [make('random', shape, dtype, seed=i) for i in range(2)]
    until = time.monotonic() + SECONDS
    with Bench(t.driver, dtype, shape, threads=1) as writer, \
            Bench(t.driver, dtype, shape, threads=1) as reader:
        snapshot = writer.compress(data[0])

        def compress():
            while time.monotonic() < until:
                last.append(writer.compress(data[1]))
                del last[:-1]

        def decompress():
            while time.monotonic() < until:
                wrong = discrepancy(reader.limits, data[0], reader.decompress(snapshot))
                if wrong is not None:
                    raise Failed(f'{reader.label}: {wrong}')

        last = []
        in_threads([compress, decompress])
        wrong = discrepancy(reader.limits, data[1], reader.decompress(last[0]))
        t.expect(wrong is None, f'{reader.label}, what was compressed meanwhile: {wrong}')


@check('lets a plan move between threads')
def moving(t):
    dtype, rank = tensors(t)[0]
    shape = large_shape(rank)
    data = make('random', shape, dtype)
    made, snapshots, found = [], [], []
    for step in (lambda: made.append(Bench(t.driver, dtype, shape)),
                 lambda: snapshots.append(made[0].compress(data)),
                 lambda: found.append(made[0].decompress(snapshots[0])),
                 lambda: t.driver.destroy(made[0].plan)):
        in_threads([step])
    wrong = discrepancy(made[0].limits, data, found[0])
    t.expect(wrong is None, f'{made[0].label}: {wrong}')


@check('creates and destroys plans in two threads at once')
def creation(t):
    def work():
        for _ in range(200):
            status, plan = t.driver.create(a_tensor(t))
            if status != abi.OK:
                raise Failed(t.driver.reason(status))
            t.driver.destroy(plan)

    in_threads([work, work])
