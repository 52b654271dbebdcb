"""The room for payloads: enough, just enough, and too little."""
import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.conformance.samples import discrepancy, make
from devitocomp_plugin.conformance.tensors import a_bench, cases

SORTS = ('random', 'ramp', 'bits', 'zero')


def benches(t):
    for dtype, shape, options in cases(t):
        with Bench(t.driver, dtype, shape, options=options) as bench:
            yield bench


def snapshots(bench):
    """Data, and how many bytes compress uses for them."""
    # Enough for large tensors, whose payloads are much like each other
    for sort in SORTS if np.prod(bench.shape) < 10000 else SORTS[:1]:
        data = make(sort, bench.shape, bench.dtype)
        yield sort, data, len(bench.compress(data).payload)


@check('refuses one byte less than a snapshot needs with BUFFER_TOO_SMALL')
def one_less(t):
    for bench in benches(t):
        for sort, data, used in snapshots(bench):
            if not used:
                continue
            status, found = bench.try_compress(data, capacity=used - 1)
            if status == abi.OK and 'deterministic' not in t.driver.claims.flags:
                # Another try may need less
                continue
            t.expect(status == abi.BUFFER_TOO_SMALL,
                     f'{bench.label}, {sort}, which needs {used} bytes, with a capacity '
                     f'of {used - 1}: {describe(status)}, not BUFFER_TOO_SMALL')


@check('refuses capacities of 0 and 1 byte with BUFFER_TOO_SMALL')
def next_to_none(t):
    for bench in benches(t):
        for sort, data, used in snapshots(bench):
            for capacity in (0, 1):
                if used <= capacity:
                    continue
                status, _ = bench.try_compress(data, capacity=capacity)
                t.expect(status == abi.BUFFER_TOO_SMALL,
                         f'{bench.label}, {sort}, which needs {used} bytes, with a '
                         f'capacity of {capacity}: {describe(status)}, not '
                         f'BUFFER_TOO_SMALL')


@check('is content with as many bytes as a snapshot needs')
def just_enough(t):
    if 'deterministic' not in t.driver.claims.flags:
        raise NotApplicable('it does not claim DETERMINISTIC; another try may need more')
    for bench in benches(t):
        for sort, data, used in snapshots(bench):
            status, _ = bench.try_compress(data, capacity=used)
            t.expect(status == abi.OK,
                     f'{bench.label}, {sort}, which needs {used} bytes, with that '
                     f'capacity: {t.driver.reason(status, bench.plan)}')


@check('is usable after BUFFER_TOO_SMALL')
def afterwards(t):
    with a_bench(t) as bench:
        for sort, data, used in snapshots(bench):
            if used and bench.try_compress(data, capacity=used//2)[0] == abi.OK:
                t.expect(False, f'{bench.label}, {sort}, which needs {used} bytes, fits '
                                f'into {used//2}')
            wrong = discrepancy(bench.limits, data,
                                bench.decompress(bench.compress(data)))
            t.expect(wrong is None, f'{bench.label}, {sort}: {wrong}')


@check('works with a capacity beyond max_compressed_bytes')
def ample(t):
    with a_bench(t) as bench:
        for sort, data, _ in snapshots(bench):
            status, _ = bench.try_compress(
                data, capacity=bench.limits.max_compressed_bytes + 12345)
            t.expect(status == abi.OK, f'{bench.label}, {sort}: '
                                       f'{t.driver.reason(status, bench.plan)}')
