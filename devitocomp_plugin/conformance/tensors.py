"""Which tensors checks are to be made with."""
import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import Failed
from devitocomp_plugin.conformance.samples import large_shape, small_shape

__all__ = ['a_bench', 'a_tensor', 'cases', 'tensors']


def tensors(t):
    """
    All that the provider claims.

    Returns
    -------
    list of (numpy.dtype, int)
        Dtype and rank; float32 and rank 2 first, if offered.
    """
    claims = t.driver.claims
    if not claims.dtypes or not claims.ranks:
        raise Failed('it claims no dtypes or no ranks')
    dtypes = sorted(claims.dtypes, key=lambda i: (i != np.float32, str(i)))
    ranks = sorted(claims.ranks, key=lambda i: (i != 2, i))
    return [(i, j) for i in dtypes for j in ranks]


def a_tensor(t):
    """A `devitocomp_tensor_t` that the provider should take, newly made."""
    dtype, rank = tensors(t)[0]
    return abi.make_tensor(dtype, small_shape(rank))


def a_bench(t, **kwargs):
    """A bench of such a tensor."""
    dtype, rank = tensors(t)[0]
    return Bench(t.driver, dtype, small_shape(rank), **kwargs)


def cases(t):
    """
    Small tensors of all that the provider claims, with all tolerances, and large ones, in
    which the threads of a call all have something to do, of each dtype, rank and
    tolerance, but not of each combination.

    Yields
    ------
    (numpy.dtype, tuple of int, str or None)
        Dtype, shape and options.
    """
    pairs = tensors(t)
    first_dtype, first_rank = pairs[0]
    for dtype, rank in pairs:
        shape = small_shape(rank)
        tolerances = t.driver.tolerances(dtype, shape)
        for options in tolerances:
            yield dtype, shape, options
        if dtype == first_dtype:
            yield dtype, large_shape(rank), tolerances[0]
        if rank == first_rank:
            for options in tolerances[1:] if dtype == first_dtype else tolerances[:1]:
                yield dtype, large_shape(rank), options
