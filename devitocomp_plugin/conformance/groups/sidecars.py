"""Whether sidecars are needed, or not, as claimed."""
import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench, Snapshot
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.samples import discrepancy, make, small_shape
from devitocomp_plugin.conformance.tensors import tensors

SORTS = ('random', 'ramp', 'spike', 'bits')


def benches(t):
    """Those with sidecars."""
    found = False
    for dtype, rank in tensors(t):
        shape = small_shape(rank)
        for options in t.driver.tolerances(dtype, shape):
            with Bench(t.driver, dtype, shape, options=options) as bench:
                if bench.limits.sidecar_bytes:
                    found = True
                    yield bench
    if not found:
        raise NotApplicable('it has no sidecars')


def strangers(bench, snapshot):
    """Sidecars that are not that of the snapshot."""
    nbytes = len(snapshot.sidecar)
    rng = np.random.default_rng(1)
    yield 'of zeros', bytes(nbytes)
    yield 'of ones', b'\xff'*nbytes
    yield 'of random bytes', rng.bytes(nbytes)
    yield 'of another snapshot', bench.compress(
        3*make('random', bench.shape, bench.dtype, seed=2)).sidecar


def outcomes(t, bench):
    """What becomes of snapshots with the wrong sidecar: status, and what is wrong."""
    for sort in SORTS:
        data = make(sort, bench.shape, bench.dtype)
        snapshot = bench.compress(data)
        for name, sidecar in strangers(bench, snapshot):
            if sidecar == snapshot.sidecar:
                continue
            status, found = bench.try_decompress(Snapshot(snapshot.payload, sidecar))
            wrong = None
            if status == abi.OK:
                wrong = discrepancy(bench.limits, data, found)
            yield f'{bench.label}, {sort}, a sidecar {name}', status, wrong


@check('cannot decompress with a wrong sidecar, as it claims to need the right one')
def needed(t):
    if 'uses-sidecar' not in t.driver.claims.flags:
        raise NotApplicable('it does not claim USES_SIDECAR')
    for bench in benches(t):
        results = list(outcomes(t, bench))
        noticed = sum(status != abi.OK for _, status, _ in results)
        wrong = sum(i is not None for _, _, i in results)
        t.expect(noticed + wrong > 0,
                 f'{bench.label}: each of {len(results)} snapshots is restored with a '
                 f'wrong sidecar; do not claim USES_SIDECAR')
        t.note(f'{bench.label}: of {len(results)} wrong sidecars, {noticed} give an '
               f'error, {wrong} wrong data')


@check('decompresses with any sidecar, as it does not claim to need one')
def not_needed(t):
    if 'uses-sidecar' in t.driver.claims.flags:
        raise NotApplicable('it claims USES_SIDECAR')
    for bench in benches(t):
        for what, status, wrong in outcomes(t, bench):
            t.expect(status == abi.OK, f'{what}: decompress returns '
                                       f'{t.driver.reason(status, bench.plan)}')
            t.expect(wrong is None, f'{what}: {wrong}')
