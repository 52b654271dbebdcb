"""What users create, set and read."""

import copy
import pickle

import numpy as np
import pytest
from devito import (
    Constant,
    Eq,
    Function,
    Grid,
    Operator,
    TensorTimeFunction,
    configuration,
)
from devito import TimeFunction as DenseTimeFunction
from devito.exceptions import InvalidArgument

import devitocomp_plugin as dcp
from devitocomp_plugin import DevitoComp, Host, NoLayers, TimeFunction
from devitocomp_plugin.exceptions import ProviderError, StoreError
from devitocomp_plugin.layers import as_layers


def make(name='usave', shape=(4, 5), save=6, **kwargs):
    kwargs.setdefault('compression', 'devitocomp')
    kwargs.setdefault('grid', Grid(shape=shape))
    return TimeFunction(name=name, save=save, **kwargs)


class TestConfiguration:

    @pytest.mark.parametrize('error,options', [
        (None, None), (0, '0'), (0., '0'), (-0., '0'), (0.01, '0.01'), (1, '1'),
        (1e-300, '1e-300'), (1/3, '0.3333333333333333'), (np.float64(1e-3), '0.001'),
        (np.int64(2), '2'), (np.float32(0.5), '0.5')
    ])
    def test_options(self, error, options):
        assert DevitoComp(error=error).options == options
        if options is not None:
            assert float(options) == float(error)

    @pytest.mark.parametrize('error,exception', [
        (True, TypeError), (np.bool_(True), TypeError), ('0.01', TypeError),
        (1j, TypeError), ([0.1], TypeError), (float('nan'), ValueError),
        (float('inf'), ValueError), (-1e-9, ValueError), (np.float32(-1), ValueError)
    ])
    def test_refused(self, error, exception):
        with pytest.raises(exception, match='`error` must be a'):
            DevitoComp(error=error)

    def test_value_semantics(self):
        a, b = DevitoComp(error=0.5), DevitoComp(np.float32(0.5))
        assert a == b and hash(a) == hash(b) and a != DevitoComp()
        assert pickle.loads(pickle.dumps(a)) == a and copy.deepcopy(a) == a
        assert eval(repr(a)) == a and eval(repr(DevitoComp())) == DevitoComp()
        with pytest.raises(AttributeError):
            a.error = 1.

    def test_options_are_locale_independent(self):
        import locale
        previous = locale.setlocale(locale.LC_NUMERIC)
        for name in ('de_DE.UTF-8', 'fr_FR.UTF-8', ''):
            try:
                locale.setlocale(locale.LC_NUMERIC, name)
            except locale.Error:
                continue
            assert DevitoComp(error=0.25).options == '0.25'
        locale.setlocale(locale.LC_NUMERIC, previous)

    @pytest.mark.parametrize('value,expected', [
        (None, NoLayers), (NoLayers, NoLayers), ('no-layers', NoLayers), ((), NoLayers),
        ('host', Host), (('host',), Host), (['Host'], Host), (Host, Host)
    ])
    def test_layers(self, value, expected):
        assert as_layers(value) is expected

    def test_layers_refused(self):
        with pytest.raises(ValueError, match="layers='tape'.*'disk-host-device'"):
            as_layers('tape')
        with pytest.raises(ValueError, match='host.*disk'):
            as_layers(('host', 'disk'))
        assert pickle.loads(pickle.dumps(dcp.DiskHost)) == dcp.DiskHost
        assert dcp.DiskHost.home == 'disk' and dcp.DiskHost.is_composite
        assert Host.home == 'host' and not Host.is_composite


class TestCreation:

    def test_dense(self):
        grid = Grid(shape=(4, 5))
        for kwargs in ({}, {'compression': None}, {'layers': NoLayers}):
            for save in (None, 3):
                f = TimeFunction(name='f', grid=grid, save=save, **kwargs)
                assert type(f) is DenseTimeFunction
                assert f.data.shape == ((save or 2), 4, 5)

    @pytest.mark.parametrize('compression,expected', [
        ('devitocomp', DevitoComp()), (DevitoComp(), DevitoComp()),
        (DevitoComp(error=0.1), DevitoComp(error=0.1))
    ])
    def test_compressed(self, compression, expected):
        f = make(compression=compression)
        assert isinstance(f, TimeFunction) and isinstance(f, DenseTimeFunction)
        assert f.compression == expected and f.layers is NoLayers
        assert f.serialization is None
        assert f.shape == (6, 4, 5) and f.save == 6 and f.is_TimeFunction
        assert f.forward.compression == expected

    @pytest.mark.parametrize('compression', ['bitcomp', 'cvxcompress', 'noop', 'BitComp'])
    def test_foreign_codecs(self, compression):
        with pytest.raises(ValueError, match='DEVITOCOMP_ROOT'):
            make(compression=compression)

    @pytest.mark.parametrize('compression', ['zip', True, 0.01, DevitoComp, {}])
    def test_refused(self, compression):
        with pytest.raises(ValueError, match=r"Accepted: None, 'devitocomp', DevitoComp"):
            make(compression=compression)

    @pytest.mark.parametrize('save', [None, 'all'])
    def test_save(self, save):
        with pytest.raises(ValueError, match='requires an integer `save`'):
            make(save=save)

    def test_layers_without_compression(self):
        with pytest.raises(ValueError, match="compression='devitocomp'"):
            make(compression=None, layers='host')
        with pytest.raises(ValueError, match="compression='devitocomp'"):
            make(compression=None, serialization='/nowhere')
        with pytest.raises(ValueError, match='Disk layer'):
            make(serialization='/nowhere')

    def test_nothing_allocated(self):
        """Histories larger than any memory can be declared."""
        f = make(shape=(1000, 1000, 1000), save=100_000)
        assert f.data.nbytes == 4*10**14
        assert f._store._handle is None

    def test_huge_history(self):
        """More than 2^31 elements in all, with 32 bit indices into each snapshot."""
        grid = Grid(shape=(64, 64, 64))
        f = TimeFunction(name='f', grid=grid, save=10_000, compression='devitocomp')
        assert f.size_global > 2**31
        u = DenseTimeFunction(name='u', grid=grid)
        op = Operator([Eq(u.forward, u + 1), Eq(f, u)],
                      opt=('advanced', {'linearize': True}))
        op.apply(time_m=9_996, time_M=9_998)
        values = [float(f.data[i, 3, 4, 5]) for i in range(9_995, 10_000)]
        assert values == [0, 0, 1, 2, 0]

    def test_vector_and_tensor(self):
        grid = Grid(shape=(4, 5))
        v = dcp.VectorTimeFunction(name='v', grid=grid, save=3, compression='devitocomp')
        t = dcp.TensorTimeFunction(name='t', grid=grid, save=3, compression='devitocomp')
        assert isinstance(t, TensorTimeFunction)
        for i in (*v, *t):
            assert i.compression == DevitoComp() and i._store is not None
        assert v[0]._store is not v[1]._store
        dense = dcp.VectorTimeFunction(name='v', grid=grid, save=3)
        assert type(dense[0]) is DenseTimeFunction

    def test_provider_refusal(self, use_root, providers):
        """What the provider cannot do fails when the function is created."""
        use_root(None)
        with pytest.raises(ProviderError, match='dummy.*1 dimension'):
            make(shape=(7,))
        with pytest.raises(ProviderError, match='dummy.*float64'):
            make(grid=Grid(shape=(4, 5), dtype=np.float64))
        use_root(providers / 'no_symbol')
        with pytest.raises(ProviderError, match='devitocomp_decompress'):
            make()


class TestData:

    def values(self, f, seed=0):
        return np.random.default_rng(seed).random(f.shape).astype(np.float32)

    def test_like_an_array(self):
        f = make()
        values = self.values(f)
        f.data[:] = values
        d = f.data
        assert d.shape == values.shape and d.dtype == values.dtype and d.ndim == 3
        assert d.size == values.size and d.nbytes == values.nbytes and len(d) == 6
        for key in (0, -1, np.int64(2), slice(None), slice(1, 5, 2),
                    slice(None, None, -1), slice(4, 2), (2, 3), (2, slice(1, 3), 1),
                    (slice(1, 3), 2), Ellipsis,
                    (1, Ellipsis), (Ellipsis, 2), (1, Ellipsis, 0), [0, 3],
                    np.array([5, 1]), np.array([True, False]*3), ([1, 2], 3)):
            assert np.array_equal(d[key], values[key]), key
        assert np.array_equal(np.asarray(d), values)
        assert np.asarray(d, dtype=np.float64).dtype == np.float64
        assert np.array_equal([i for i in d], values)
        assert np.array_equal(d + 1, values + 1) and np.array_equal(2*d, 2*values)
        assert np.array_equal(np.abs(d), np.abs(values))
        assert np.min(d) == values.min() and np.max(d) == values.max() == d.max()
        assert np.isclose(np.sum(d), values.sum(), rtol=1e-6)
        assert np.array_equal(np.max(d, axis=0), values.max(axis=0))
        assert np.all(d == values)

    @pytest.mark.parametrize('key', [6, -7, (0, 4), (0, 0, 0, 0)])
    def test_out_of_bounds(self, key):
        with pytest.raises(IndexError):
            make().data[key]

    @pytest.mark.parametrize('key', [np.zeros((2, 2), int), 1.5, None])
    def test_no_such_key(self, key):
        with pytest.raises(IndexError, match='integer, a slice'):
            make().data[key]

    @pytest.mark.parametrize('key,shape', [
        (slice(None), ()), (slice(None), (4, 5)), (slice(None), (1, 4, 5)),
        (slice(None), (6, 4, 5)), (slice(None), (5,)), (slice(None), (6, 1, 1)),
        (2, (4, 5)), (2, ()), (2, (1, 5)), (-1, (4, 1)), ((2, 3), (5,)), ((2, 3, 1), ()),
        (slice(1, 6, 2), (3, 4, 5)), (slice(1, 6, 2), (4, 5)), ((slice(None), 2), (6, 5)),
        ((slice(None), 2), (5,)), ((Ellipsis, 0), (6, 4)), ((Ellipsis, 0), (4,)),
        ([0, 5], (2, 4, 5)), (np.array([True, False]*3), (3, 4, 5))
    ])
    def test_assignment(self, key, shape):
        f = make()
        expected = self.values(f)
        f.data[:] = expected
        values = np.random.default_rng(1).random(shape).astype(np.float32)
        expected[key] = values
        f.data[key] = values
        assert np.array_equal(np.asarray(f.data), expected)

    @pytest.mark.parametrize('key,shape', [(slice(None), (5, 4, 5)), (0, (3, 5)),
                                           (slice(None), (2, 6, 4, 5))])
    def test_assignment_refused(self, key, shape):
        with pytest.raises(ValueError, match='broadcast'):
            make().data[key] = np.zeros(shape)

    def test_assignment_from_function(self):
        f, g = make(), make('g')
        f.data[:] = self.values(f)
        g.data[:] = f.data
        g.data[2] = f.data[3]
        expected = self.values(f)
        expected[2] = expected[3]
        assert np.array_equal(np.asarray(g.data), expected)

    def test_in_place(self):
        f = make()
        expected = self.values(f)
        f.data[:] = expected
        d = f.data
        d += 1
        d *= np.float32(2)
        f.data[3] -= 4
        expected = (expected + 1)*2
        expected[3] -= 4
        assert np.array_equal(np.asarray(f.data), expected)

    def test_never_written(self):
        f = make()
        assert np.array_equal(np.asarray(f.data), np.zeros(f.shape))
        f.data[2] = 1.
        assert [float(i.max()) for i in f.data] == [0, 0, 1, 0, 0, 0]
        assert f.compression_report().snapshots == 1
        f.clear()
        assert float(f.data.max()) == 0 and f.compression_report().snapshots == 0

    def test_read_only(self):
        f = make()
        f.data[1] = 3.
        assert f.data_ro_domain[1, 0, 0] == 3.
        with pytest.raises(ValueError, match='read-only'):
            f.data_ro_domain[1] = 4.

    @pytest.mark.parametrize('attribute', ['data_with_halo', 'data_ro_with_halo',
                                           '_data_allocated'])
    def test_no_halo(self, attribute):
        with pytest.raises(NotImplementedError, match='halo.*not stored'):
            getattr(make(), attribute)

    def test_initializer(self):
        values = self.values(make())
        f = make(initializer=values)
        assert np.array_equal(np.asarray(f.data), values)
        f = make(initializer=lambda x: x.fill(2))
        assert np.all(f.data == 2)
        with pytest.raises(ValueError, match='initializer.*shape'):
            make(initializer=values[:3])

    def test_views_share_the_store(self):
        f = make()
        f.data[1] = 5.
        assert f.forward.data[1, 2, 2] == 5.
        assert f.dx is not None
        f.backward.data[2] = 6.
        assert f.data[2, 0, 0] == 6.


class TestPickling:

    def test_function(self):
        f = make(compression=DevitoComp(error=0.1))
        f.data[1:3] = np.random.default_rng(0).random((2, 4, 5))
        g = pickle.loads(pickle.dumps(f))
        assert type(g) is type(f) and g.name == f.name and g.shape == f.shape
        assert g.compression == f.compression and g.layers == f.layers
        assert np.array_equal(np.asarray(g.data), np.asarray(f.data))
        assert g.compression_report().snapshots == 2
        # Independent of each other from now on
        g.data[1] = 9.
        assert not np.any(f.data[1] == 9.)

    def test_empty_function(self):
        g = pickle.loads(pickle.dumps(make()))
        assert g._store._handle is None
        assert g.compression_report().snapshots == 0

    def test_size(self):
        """What is pickled is compressed, not dense."""
        f = make(shape=(64, 64), save=200)
        f.data[0] = 1.
        assert len(pickle.dumps(f)) < 1.5*64*64*4 + 20_000

    def test_without_snapshots(self):
        """For shipping an Operator to a worker."""
        f = make(shape=(64, 64))
        f.data[:] = 1.
        op = Operator(Eq(f, f + 1))
        large = len(pickle.dumps(op))
        f.pickle_snapshots = False
        assert len(pickle.dumps(op)) < large - 6*64*64*4
        g = pickle.loads(pickle.dumps(f))
        assert g.compression_report().snapshots == 0 and g.shape == f.shape
        f.pickle_snapshots = True
        assert pickle.loads(pickle.dumps(f)).compression_report().snapshots == 6

    def test_deepcopy(self):
        f = make()
        f.data[1] = 2.
        g = copy.deepcopy(f)
        g.data[1] = 3.
        assert f.data[1, 0, 0] == 2. and g.data[1, 0, 0] == 3.

    def test_other_provider(self, use_root, providers):
        use_root(providers / 'strided')
        f = make()
        f.data[1] = 2.
        data = pickle.dumps(f)
        use_root(None)
        g = pickle.loads(data)
        with pytest.raises(StoreError, match='strided.*dummy'):
            g.data[1]
        # Yet nothing is lost
        data = pickle.dumps(g)
        use_root(providers / 'strided')
        assert pickle.loads(data).data[1, 0, 0] == 2.

    def test_operator(self, use_root, providers, copy_of_dummy):
        f = make()
        u = DenseTimeFunction(name='u', grid=f.grid)
        op = Operator([Eq(u.forward, u + 1), Eq(f, u)])
        op.apply(time_M=5)
        data = pickle.dumps(op)
        # Another path, another provider: the operator is built where it lands
        for root in (copy_of_dummy, providers / 'strided'):
            use_root(root)
            other = pickle.loads(data)
            g, v = make(), DenseTimeFunction(name='u', grid=f.grid)
            other.apply(usave=g, u=v, time_M=5)
            assert [int(g.data[i, 0, 0]) for i in range(6)] == [0, 1, 2, 3, 4, 5]
            assert g.compression_report().provider == str(other._provider)
            assert other._provider.root == root.resolve()


class TestOverrides:

    def setup_method(self):
        self.f = make(compression=DevitoComp(error=0.1))
        self.u = DenseTimeFunction(name='u', grid=self.f.grid)
        self.op = Operator([Eq(self.u.forward, self.u + 1), Eq(self.f, self.u)])

    def test_error_is_fixed(self):
        with pytest.raises(InvalidArgument, match='error'):
            self.op.apply(time_M=3, error=0.2)

    def test_other_configuration(self):
        other = make(grid=self.f.grid, compression=DevitoComp(error=0.2))
        with pytest.raises(InvalidArgument, match=r'compression differ.*0\.1.*0\.2'):
            self.op.apply(time_M=3, usave=other)

    def test_dense_for_compressed(self):
        dense = DenseTimeFunction(name='usave', grid=self.f.grid, save=6)
        for i in (dense, np.zeros((6, 6, 7), np.float32)):
            with pytest.raises(InvalidArgument, match='can only be overridden'):
                self.op.apply(time_M=3, usave=i)

    def test_compressed_for_dense(self):
        dense = DenseTimeFunction(name='g', grid=self.f.grid, save=6)
        op = Operator(Eq(dense, dense + 1))
        with pytest.raises(InvalidArgument, match='built for a dense `g`'):
            op.apply(g=self.f)

    def test_out_of_bounds(self):
        with pytest.raises(InvalidArgument, match='OOB'):
            self.op.apply(time_M=6)
        with pytest.raises(InvalidArgument, match='OOB'):
            self.op.apply(time_m=-1, time_M=3)

    def test_other_shape(self):
        """An Operator runs on any grid."""
        grid = Grid(shape=(7, 3))
        f = make(grid=grid, save=4, compression=DevitoComp(error=0.1))
        u = DenseTimeFunction(name='u', grid=grid)
        self.op.apply(usave=f, u=u, time_M=3)
        assert [float(i.min()) for i in f.data] == [0, 1, 2, 3]

    def test_same_function_twice(self):
        f, g = make('f'), make('g')
        u = DenseTimeFunction(name='u', grid=f.grid)
        op = Operator([Eq(u.forward, f + 2*g)])
        with pytest.raises(InvalidArgument, match='same compressed function'):
            op.apply(f=g, time_M=3)

    def test_constant(self):
        c = Constant(name='c', value=2.)
        op = Operator([Eq(self.f, c*3)])
        op.apply(c=4.)
        assert np.all(self.f.data == 12)


class TestOperators:

    def test_estimate_memory(self):
        grid = Grid(shape=(20, 20, 20))
        f = make(grid=grid, save=100)
        u = DenseTimeFunction(name='u', grid=grid)
        op = Operator([Eq(u.forward, u + 1), Eq(f, u)])
        host = op.estimate_memory()['host']
        raw = 100*20**3*4
        # The dummy stores at most the raw bytes, and a sidecar of eight
        assert raw + 800 <= host <= raw + 800 + 4*24**3*4
        assert f._store._handle is None

    def test_autotuning(self):
        grid = Grid(shape=(24, 24, 24), extent=(23., 23., 23.))
        results = []
        for compression in (None, 'devitocomp'):
            f = make(grid=grid, save=40, compression=compression)
            u = DenseTimeFunction(name='u', grid=grid, space_order=2)
            u.data[:] = 0
            g = Function(name='g', grid=grid)
            g.data[:] = 0
            # What an attempt adds would stay
            op = Operator([Eq(u.forward, u + 1 + 0.1*u.laplace), Eq(f, f + u),
                           Eq(g, g + f)], opt=('advanced', {'openmp': True}))
            op.apply(time_M=39, autotune=('basic', 'preemptive'))
            results.append((np.asarray(f.data), np.array(g.data)))
        for a, b in zip(*results, strict=True):
            assert np.array_equal(a, b)

    def test_perf_log(self, caplog):
        f = make()
        u = DenseTimeFunction(name='u', grid=f.grid)
        level = configuration['log-level']
        configuration['log-level'] = 'PERF'
        try:
            Operator([Eq(u.forward, u + 1), Eq(f, u)]).apply(time_m=0, time_M=3)
        finally:
            configuration['log-level'] = level
        lines = [i for i in caplog.text.splitlines() if 'Compressed `usave`' in i]
        assert len(lines) == 1 and '4 snapshots' in lines[0]

    def test_lossless_notice(self, use_root, caplog):
        """A tolerance is no use to a provider that copies: say so, once."""
        use_root(None)
        from devitocomp_plugin.types import functions
        functions.notified.clear()
        for i in range(3):
            make(f'f{i}', compression=DevitoComp(error=0.1))
            make(f'g{i}')
        assert caplog.text.count('lossless') == 1 and '0.1' in caplog.text
