"""Tensors with gaps and permuted dimensions, for providers that claim STRIDED."""
from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.samples import discrepancy, make, small_shape
from devitocomp_plugin.conformance.tensors import tensors


def layouts(shape):
    """Strides by name: none of them contiguous, none with overlaps."""
    rank = len(shape)
    padded = [1]
    for n, extent in enumerate(reversed(shape[1:])):
        # In the dimensions of space as around them; of more, the array would be huge
        padded.insert(0, padded[0]*(extent + (8 if n < 3 else 1)))
    yield 'inside a larger array', tuple(padded)
    yield 'every third element', tuple(3*i for i in abi.contiguous_strides(shape))
    if rank > 1:
        reverse = abi.contiguous_strides(shape[::-1])[::-1]
        yield 'fastest dimension first', reverse
        yield 'fastest dimension first, with gaps', tuple(2*i for i in reverse)
        rolled = abi.contiguous_strides((*shape[1:], shape[0]))
        yield 'dimensions rolled', (rolled[-1], *rolled[:-1])
        yield 'planes far apart', (int(padded[0])*3 + 5, *padded[1:])


def benches(t):
    if 'strided' not in t.driver.claims.flags:
        raise NotApplicable('it does not claim STRIDED; group `creation` sees such '
                            'tensors refused')
    for dtype, rank in tensors(t):
        unit = (1,)*rank
        cases = [(small_shape(rank), *i) for i in layouts(small_shape(rank))]
        # Where there is but one element, or plane, strides have no meaning
        cases.append((unit, 'one element', (77,)*rank))
        if rank > 1:
            cases.append(((5,) + (1,)*(rank - 1), 'one column', (3,) + (99,)*(rank - 1)))
        for shape, name, strides in cases:
            for options in t.driver.tolerances(dtype, shape):
                with t.context(name), Bench(t.driver, dtype, shape, strides,
                                            options) as bench:
                    yield bench, options


@check('reads and writes strided tensors')
def strided(t):
    for bench, _ in benches(t):
        data = make('random', bench.shape, bench.dtype)
        wrong = discrepancy(bench.limits, data, bench.decompress(bench.compress(data)))
        t.expect(wrong is None, f'{bench.label}: {wrong}')


@check('makes payloads that do not depend on strides')
def exchanged(t):
    for bench, options in benches(t):
        data = make('random', bench.shape, bench.dtype)
        with Bench(t.driver, bench.dtype, bench.shape, options=options) as dense:
            for source, target in ((bench, dense), (dense, bench)):
                status, found = target.try_decompress(source.compress(data))
                what = f'from {source.label} to {target.label}'
                if t.expect(status == abi.OK,
                            f'{what}: {t.driver.reason(status, target.plan)}'):
                    wrong = discrepancy(bench.limits, data, found)
                    t.expect(wrong is None, f'{what}: {wrong}')
