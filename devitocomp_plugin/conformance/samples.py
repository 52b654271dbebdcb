"""Tensors to compress, and how far they may change."""
import numpy as np

from devitocomp_plugin import abi

__all__ = ['DATA', 'discrepancy', 'large_shape', 'make', 'shapes', 'small_shape',
           'wavefields']

_SHAPES = {
    1: [(1,), (2,), (7,), (257,), (1009,)],
    2: [(1, 1), (1, 9), (9, 1), (5, 4), (17, 31)],
    3: [(1, 1, 1), (1, 6, 7), (7, 1, 1), (5, 4, 3), (13, 7, 11)],
    4: [(1, 1, 1, 1), (3, 1, 4, 1), (2, 3, 5, 7)],
}
_LARGE = {1: (262147,), 2: (521, 503), 3: (67, 61, 53), 4: (23, 19, 29, 17)}


def shapes(rank):
    """Shapes with unit, odd and prime extents."""
    others = [(1,)*rank, (2,)*rank, (3,) + (1,)*(rank - 2) + (5,)]
    return _SHAPES.get(rank, others)


def small_shape(rank):
    """A shape of some hundred elements."""
    return {1: (331,), 2: (17, 19), 3: (5, 7, 11)}.get(rank, (5, 3, 7) + (2,)*(rank - 3))


def large_shape(rank):
    """A shape of about a megabyte."""
    return _LARGE.get(rank) or {5: (11,), 6: (7,), 7: (5,), 8: (4,)}[rank]*rank


def _zero(shape, dtype, rng):
    return np.zeros(shape, dtype)


def _constant(shape, dtype, rng):
    return np.full(shape, 1.1 if dtype.kind == 'f' else 3, dtype)


def _ramp(shape, dtype, rng):
    size = int(np.prod(shape))
    return (np.arange(size) - size//3).reshape(shape).astype(dtype)


def _spike(shape, dtype, rng):
    data = np.zeros(shape, dtype)
    data.flat[data.size//2] = -7
    return data


def _random(shape, dtype, rng):
    return (100*rng.standard_normal(shape)).astype(dtype)


def _tiny(shape, dtype, rng):
    tiny = np.finfo(dtype).tiny
    return (tiny*(1 + rng.random(shape))*rng.choice([-1, 1], shape)).astype(dtype)


def _denormal(shape, dtype, rng):
    least = np.finfo(dtype).smallest_subnormal
    return (rng.integers(-1000, 1001, shape)*least).astype(dtype)


def _huge(shape, dtype, rng):
    info = np.finfo(dtype) if dtype.kind == 'f' else np.iinfo(dtype)
    data = (rng.uniform(-1, 1, shape)*float(info.max)*0.99).astype(dtype)
    data.flat[0], data.flat[-1] = info.min, info.max
    return data


def _magnitudes(shape, dtype, rng):
    top = np.log10(float(np.finfo(dtype).max)) - 1
    sign = rng.choice([-1, 1], shape)
    return (sign*10.**rng.uniform(-top, top, shape)).astype(dtype)


def _bits(shape, dtype, rng):
    raw = rng.integers(0, 256, int(np.prod(shape))*dtype.itemsize, dtype=np.uint8)
    data = raw.view(dtype).reshape(shape).copy()
    data[~np.isfinite(data)] = -0.
    return data


DATA = {'zero': _zero, 'constant': _constant, 'ramp': _ramp, 'spike': _spike,
        'random': _random, 'tiny': _tiny, 'denormal': _denormal, 'huge': _huge,
        'magnitudes': _magnitudes, 'bits': _bits}
"""How to make finite data of each sort."""

FLOATS_ONLY = ('tiny', 'denormal', 'magnitudes')


def make(sort, shape, dtype, seed=0):
    """
    Data of a sort, the same for equal arguments.

    Parameters
    ----------
    sort : str
        One of DATA.
    shape : tuple of int
    dtype : numpy.dtype
    seed : int, optional

    Returns
    -------
    numpy.ndarray or None
        None if there is none of that dtype.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != 'f' and sort in FLOATS_ONLY:
        return None
    return DATA[sort](shape, dtype, np.random.default_rng(seed))


def discrepancy(limits, data, found):
    """
    Hold decompressed data against the bound that the limits give.

    The arithmetic is that of long doubles, which represent all differences of doubles
    and 64-bit integers that matter without overflow; there is no slack.

    Parameters
    ----------
    limits : LimitsStruct
        Of the plan.
    data, found : numpy.ndarray
        What was compressed, and what came back.

    Returns
    -------
    str or None
        What is wrong, with the values; None if nothing is.
    """
    kind = abi.ERROR_KINDS.get(limits.error_kind)
    if kind == 'lossless':
        bits = f'u{data.itemsize}'
        wrong = np.ascontiguousarray(data).view(bits) != found.view(bits)
        if not wrong.any():
            return None
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (f'lossless, but {int(wrong.sum())} of {data.size} elements differ: '
                f'{data[where]!r} at {where} became {found[where]!r}')
    if kind == 'none':
        return None

    exact, got = data.astype(np.longdouble), found.astype(np.longdouble)
    finite = np.isfinite(exact)
    wrong = (np.isnan(exact) != np.isnan(got)) | (~finite & ~np.isnan(exact)
                                                  & (exact != got))
    error = np.abs(np.subtract(exact, got, where=finite, out=np.zeros_like(exact)))
    most = np.max(np.abs(exact), where=finite, initial=0)
    bound = np.longdouble(limits.error_bound)
    bound = bound*most if kind == 'relative-max' else bound
    wrong |= ~(error <= bound)
    if not wrong.any():
        return None
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (f'error bound {limits.error_bound!r} ({kind}) is broken in '
            f'{int(wrong.sum())} of {data.size} elements: {data[where]!r} at {where} '
            f'became {found[where]!r}, the largest error is {float(np.max(error)):.6g}, '
            f'allowed is {float(bound):.6g}')


def wavefields(ndim, dtype, snapshots=4):
    """
    Snapshots of an acoustic wave in a medium of two layers, from before the source has
    spoken until the wave has filled the model.

    Parameters
    ----------
    ndim : int
        1 to 3.
    dtype : numpy.dtype
    snapshots : int, optional

    Yields
    ------
    numpy.ndarray
    """
    n = {1: 600, 2: 121, 3: 48}[ndim]
    courant2 = np.full((n,)*ndim, 0.16)
    courant2[n//2:] = 0.3
    source = (n//4,) + (n//2,)*(ndim - 1)
    past, now = np.zeros((n,)*ndim), np.zeros((n,)*ndim)
    steps = 2*n
    yield now.astype(dtype)
    for step in range(1, steps + 1):
        laplace = -2*ndim*now
        for axis in range(ndim):
            ahead = [slice(None)]*ndim
            behind = [slice(None)]*ndim
            ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
            laplace[tuple(ahead)] += now[tuple(behind)]
            laplace[tuple(behind)] += now[tuple(ahead)]
        past, now = now, 2*now - past + courant2*laplace
        phase = (np.pi*(step - 20)/20)**2
        now[source] += (1 - 2*phase)*np.exp(-phase)
        if step % (steps//(snapshots - 1)) == 0:
            yield now.astype(dtype)
