"""Whether equal input gives equal payloads, as far as it is claimed."""
import numpy as np

from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.samples import discrepancy, make
from devitocomp_plugin.conformance.tensors import cases

THREADS = (1, 2, 3, 7, 0)


def snapshots(t):
    for dtype, shape, options in cases(t):
        data = make('random', shape, dtype)
        # Uneven work, so that threads end in another order than they begin
        data[shape[0]//3:2*shape[0]//3] = 0
        yield data, options


def same(t, bench, what, first, second):
    for name in ('payload', 'sidecar'):
        a, b = getattr(first, name), getattr(second, name)
        if a == b:
            continue
        if len(a) != len(b):
            difference = f'has {len(b)} bytes, not {len(a)}'
        else:
            changed = np.flatnonzero(np.frombuffer(a, np.uint8) !=
                                     np.frombuffer(b, np.uint8))
            difference = f'differs in {changed.size} bytes, the first at {changed[0]}'
        t.expect(False, f'{bench.label}: {what}, the {name} {difference}')


@check('makes the same of equal input: again, elsewhere, later and with another plan')
def deterministic(t):
    if 'deterministic' not in t.driver.claims.flags:
        raise NotApplicable('it does not claim DETERMINISTIC')
    for data, options in snapshots(t):
        with Bench(t.driver, data.dtype, data.shape, options=options) as bench:
            first = bench.compress(data, fill=0x00)
            same(t, bench, 'in memory that held other bytes', first,
                 bench.compress(data, fill=0xFF))
            moved = tuple(8*i for i in (8, bench.limits.payload_alignment,
                                        bench.limits.sidecar_alignment))
            same(t, bench, 'at other addresses', first,
                 bench.compress(data, offsets=moved))
            bench.compress(make('huge', data.shape, data.dtype))
            same(t, bench, 'after another snapshot', first, bench.compress(data))
            bench.decompress(first)
            same(t, bench, 'after decompressing', first, bench.compress(data))
            with Bench(t.driver, data.dtype, data.shape, options=options) as other:
                same(t, bench, 'with another plan', first, other.compress(data))


@check('makes the same of equal input with any number of threads')
def threads(t):
    if 'thread-independent' not in t.driver.claims.flags:
        raise NotApplicable('it does not claim THREAD_INDEPENDENT')
    for data, options in snapshots(t):
        with Bench(t.driver, data.dtype, data.shape, options=options, threads=1) as bench:
            first = bench.compress(data)
            for n in THREADS[1:]:
                same(t, bench, f'with {n or "default"} threads', first,
                     bench.compress(data, threads=n))


@check('decompresses with any number of threads')
def decompression(t):
    for data, options in snapshots(t):
        with Bench(t.driver, data.dtype, data.shape, options=options, threads=3) as bench:
            snapshot = bench.compress(data)
            last = None
            for n in THREADS:
                found = bench.decompress(snapshot, threads=n)
                if found.tobytes() == last:
                    continue
                last = found.tobytes()
                wrong = discrepancy(bench.limits, data, found)
                t.expect(wrong is None,
                         f'{bench.label}, {n or "default"} threads: {wrong}')
