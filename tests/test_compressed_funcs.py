"""
The first acceptance suite of a provider: compressed TimeFunctions in memory.

    pytest tests/test_compressed_funcs.py -k devitocomp

runs it against the provider that DEVITOCOMP_ROOT selects, exactly by default. For a lossy
provider set DEVITOCOMP_RTOL to the relative tolerance that it promises: functions are
then made with ``DevitoComp(error=RTOL)``, and a result passes if it differs by at most
RTOL x S x max|snapshots|, with S the absolute sum of the weights with which snapshots
enter it.
"""

import numpy as np
import pytest
from acceptance import compare, configurations, label, languages, pairwise, rtol
from devito import Dimension, Eq, Function, Grid, Operator, TimeFunction
from programs import Environment, programs

import devitocomp_plugin as dcp
from devitocomp_plugin.exceptions import ProviderError
from devitocomp_plugin.provider import current_provider

pytestmark = pytest.mark.usefixtures('safe_math')


@pytest.mark.parametrize('name', programs)
def test_semantics(name, compression):
    """Every program, the way most users run it."""
    compare(name, compression)


@pytest.mark.parametrize('config,names', [
    pytest.param(c, list(programs)[n::len(pairwise())], id=label(c))
    for n, c in enumerate(pairwise())
])
def test_configurations(config, names, compression):
    """
    A pairwise selection of languages, modes and options, the programs dealt out over it.
    """
    for name in names:
        compare(name, compression, config)


@pytest.mark.slow
@pytest.mark.parametrize('config', [pytest.param(c, id=label(c))
                                    for c in configurations()])
@pytest.mark.parametrize('name', programs)
def test_product(name, config, compression):
    """All programs in all languages, modes and options."""
    compare(name, compression, config)


@pytest.mark.parametrize('shape', [(5, 4, 3), (17, 9, 31), (1, 6, 7), (7, 1, 1), (12, 13),
                                   (1, 9), (64, 3)])
def test_shapes(shape, compression):
    """Odd, unit and tiny extents, in two and three dimensions."""
    results = []
    for c in (None, compression):
        grid = Grid(shape=shape)
        u = TimeFunction(name='u', grid=grid)
        src = Function(name='src', grid=grid)
        src.data[:] = np.arange(src.data.size).reshape(shape) % 7 + 1
        usave = dcp.TimeFunction(name='usave', grid=grid, save=5, compression=c)
        Operator([Eq(u.forward, u + src), Eq(usave, u)]).apply(time_M=4)
        g = Function(name='g', grid=grid)
        Operator(Eq(g, g + usave)).apply()
        results.append((np.array(usave.data), np.array(g.data)))
    (a, ga), (b, gb) = results
    assert np.max(a) > 0
    if rtol is None:
        assert np.array_equal(a, b) and np.array_equal(ga, gb)
    else:
        assert np.max(np.abs(a - b)) <= rtol*np.max(np.abs(a))
        assert np.max(np.abs(ga - gb)) <= 5*rtol*np.max(np.abs(a))


@pytest.mark.parametrize('ndim', [1, 2, 3, 4])
@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.float16, np.int32])
def test_claims(ndim, dtype, compression):
    """What the provider offers works, what it doesn't is refused at construction."""
    claims = current_provider().claims
    grid = Grid(shape=(6,)*min(ndim, 3), dtype=dtype)
    kwargs = {'name': 'usave', 'grid': grid, 'save': 3, 'compression': compression}
    if ndim == 4:
        time, extra = grid.time_dim, Dimension(name='c')
        kwargs.update(dimensions=(time, *grid.dimensions, extra),
                      shape=(3, *grid.shape, 2))

    if ndim not in claims.ranks or np.dtype(dtype) not in claims.dtypes:
        with pytest.raises(ProviderError) as e:
            dcp.TimeFunction(**kwargs)
        assert str(ndim) in str(e.value) or np.dtype(dtype).name in str(e.value)
        return

    usave = dcp.TimeFunction(**kwargs)
    values = np.arange(usave.data.size, dtype=dtype).reshape(usave.shape)
    usave.data[:] = values
    tolerance = 0 if rtol is None else rtol*np.max(values)
    assert np.max(np.abs(np.asarray(usave.data) - values)) <= tolerance


def test_generated_code(compression):
    """The provider is called inline, by generated code."""
    env = Environment(compression)
    u, stencil = env.wave()
    usave = env.save('usave', 5)
    code = str(env.operator([stencil, Eq(usave, u)]))
    options = 'NULL' if rtol is None else f'"{compression.options}"'
    call = f'devitocomp_plan_create(DEVITOCOMP_ABI_VERSION,&tensor,&exec,{options},&plan)'
    assert call in code
    # Where a run over part of the domain needs a call of its own
    on_host = 'C' in languages
    twice = on_host and 'strided' in current_provider().claims.flags
    assert code.count('devitocomp_compress(') == 1 + twice
    assert code.count('devitocomp_plan_destroy(') == code.count('devitocomp_plan_create(')

    g = Function(name='g', grid=env.grid)
    code = str(env.operator(Eq(g, g + usave)))
    assert code.count('devitocomp_decompress(') == 1
    assert 'devitocomp_compress(' not in code


def test_report(compression):
    """What a run did can be accounted for."""
    env = Environment(compression)
    u, stencil = env.wave()
    usave = env.save('usave', 5)
    env.run([stencil, Eq(usave, u)], time_m=0, time_M=3)
    report = usave.compression_report()
    assert report.snapshots == 4
    assert report.raw_bytes == 4*np.prod(env.grid.shape)*4
    assert 0 < report.stored_bytes == sum(i.stored_bytes for i in report.per_snapshot)
    assert report.ratio == report.raw_bytes/report.stored_bytes
    assert report.compress_seconds > 0
    assert report.provider == str(current_provider())
    assert [i.index for i in report.per_snapshot] == [0, 1, 2, 3]
    assert len(str(report).splitlines()) == 3 + 4

    g = Function(name='g', grid=env.grid)
    env.run(Eq(g, g + usave), time_m=0, time_M=3)
    report = usave.compression_report()
    assert [i.decompressions for i in report.per_snapshot] == [1]*4
    assert report.decompress_seconds > 0
