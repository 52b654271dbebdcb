"""Snapshots that outlive the plan, and the process, that made them."""
import pickle

from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import Failed, check
from devitocomp_plugin.conformance.samples import discrepancy, make, small_shape
from devitocomp_plugin.conformance.tensors import tensors

SORTS = ('random', 'zero')


def cases(t):
    for dtype, rank in tensors(t):
        shape = small_shape(rank)
        for options in t.driver.tolerances(dtype, shape):
            for sort in SORTS:
                yield make(sort, shape, dtype), options


def restores(t, data, options, snapshot):
    with Bench(t.driver, data.dtype, data.shape, options=options) as bench:
        wrong = discrepancy(bench.limits, data, bench.decompress(snapshot))
        t.expect(wrong is None, f'{bench.label}: {wrong}')


@check('decompresses with another plan, once that which compressed is gone')
def other_plan(t):
    snapshots = []
    for data, options in cases(t):
        with Bench(t.driver, data.dtype, data.shape, options=options) as bench:
            snapshots.append(bench.compress(data))
    (t.workdir / 'snapshots').write_bytes(pickle.dumps(snapshots))
    for (data, options), snapshot in zip(cases(t), snapshots, strict=True):
        restores(t, data, options, snapshot)


@check('decompresses in another process', fresh=True)
def other_process(t):
    try:
        snapshots = pickle.loads((t.workdir / 'snapshots').read_bytes())
    except FileNotFoundError:
        raise Failed('there is nothing to decompress, as the check before this has not '
                     'got that far') from None
    for (data, options), snapshot in zip(cases(t), snapshots, strict=True):
        restores(t, data, options, snapshot)
