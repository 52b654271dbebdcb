"""What the passes generate, and how often the provider is called."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from devito import (
    ConditionalDimension,
    Constant,
    Eq,
    Function,
    Inc,
    TimeFunction,
    configuration,
)
from devito.exceptions import CompilationError, ExecutionError
from programs import Environment, dense, forward, programs, propagated, sparse

from devitocomp_plugin import DevitoComp
from devitocomp_plugin.operators import CompressionMixin, register


@pytest.fixture(autouse=True)
def default_provider(use_root):
    use_root(None)


def env(**kwargs):
    kwargs.setdefault('language', 'openmp')
    return Environment(DevitoComp(), **kwargs)


def body(op):
    """The entry function of an Operator."""
    code = str(op)
    start = code.index('\nint Kernel(')
    return code[start:code.index('\n}\n', start)]


def sequence(op):
    """What happens in the entry function, in order."""
    found = []
    for line in body(op).splitlines():
        for name in ('read_snapshot', 'write_snapshot', 'for (int time', 'break'):
            if line.strip().startswith(name):
                found.append(name.split()[0])
    return found


class TestUntouched:

    code = """
        from devito import *
        configuration['log-level'] = 'ERROR'
        {}
        grid = Grid(shape=(8, 9, 10))
        t = grid.time_dim
        u = TimeFunction(name='u', grid=grid, space_order=4, time_order=2)
        f = Function(name='f', grid=grid)
        usave = TimeFunction(name='usave', grid=grid, save=5,
                             time_dim=ConditionalDimension('t_sub', parent=t, factor=4))
        src = SparseTimeFunction(name='src', grid=grid, npoint=2, nt=20)
        eqs = [Eq(u.forward, 2*u - u.backward + u.laplace), Eq(usave, u), Inc(f, u)]
        eqs += src.inject(field=u.forward, expr=src) + src.interpolate(u)
        for language in ('C', 'openmp', 'CXX', 'CXXopenmp'):
            for opt in ('noop', 'advanced', 'advanced-fsg', ('fuse', 'simd', 'openmp'),
                        ('advanced', {{'errctl': 'max', 'linearize': True}})):
                op = Operator(eqs, language=language, opt=opt)
                print(op)
                print(op._compiler.libraries, op._compiler.ldflags)
    """

    def run(self, line):
        done = subprocess.run([sys.executable, '-c',
                               textwrap.dedent(self.code).format(line)],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_same_text(self):
        """Without compressed functions the very text that plain Devito generates."""
        plain = self.run('')
        assert len(plain) > 20_000
        assert self.run('import devitocomp_plugin') == plain

    def test_registration(self):
        from devito.operator.registry import operator_registry
        before = dict(operator_registry)
        assert all(issubclass(i, CompressionMixin) for i in before.values())
        register()
        assert dict(operator_registry) == before


class TestSaves:

    def test_one_save(self):
        e = env()
        u, stencil = e.wave()
        usave = e.save('usave', 9)
        op = e.operator([stencil, Eq(usave, u)])
        # What is read is for runs over part of the domain only
        assert sequence(op) == ['for', 'read_snapshot', 'write_snapshot', 'break']
        assert 'if (x_m > 0 ||' in body(op)
        op.apply(time_M=8)
        assert usave.compression_report().per_snapshot[0].decompressions == 0

    def test_guard(self):
        """Snapshots are moved under the user's condition."""
        e = env()
        u, stencil = e.wave()
        t_sub = ConditionalDimension('t_sub', parent=e.time, factor=4)
        usave = e.save('usave', 3, time_dim=t_sub)
        lines = body(e.operator([stencil, Eq(usave, u)])).splitlines()
        n, = [n for n, i in enumerate(lines) if 'write_snapshot' in i]
        guard = [i for i in lines[:n] if 'if (' in i][-1]
        assert guard.strip() == 'if ((time)%(t_subf) == 0)'
        assert 'time / t_subf' in lines[n]

    def test_injection_costs_no_second_save(self):
        e = env()
        u, stencil = e.wave()
        src = sparse(e, 'src')
        usave = e.save('usave', 9)
        op = e.operator([stencil, Eq(usave, u)] + src.inject(field=usave, expr=src))
        assert sequence(op).count('write_snapshot') == 1

    def test_save_joins_the_stencil(self):
        """There is one loop over space, as with dense functions."""
        e = env()
        u, stencil = e.wave()
        src = sparse(e, 'src')
        usave = e.save('usave', 9)
        inject = src.inject(field=u.forward, expr=src)
        op = e.operator([stencil] + inject + [Eq(usave, u)])
        assert body(op).count('for (int x = ') == 1

    def test_partial_write_reads_first(self):
        e = env()
        usave = e.save('usave', 9)
        op = e.operator(Eq(usave, 1., subdomain=e.grid.interior))
        assert sequence(op) == ['for', 'read_snapshot', 'write_snapshot', 'break']
        # Unconditionally
        assert 'x_m > 0' not in body(op)

    def test_straight_from_the_source(self, use_root, providers):
        """A provider of strided tensors gets the propagated function itself."""
        use_root(providers / 'strided')
        e = env()
        u, stencil = e.wave()
        usave = e.save('usave', 9)
        op = e.operator([stencil, Eq(usave, u)])
        assert sequence(op) == ['for', 'write_snapshot', 'read_snapshot',
                                'write_snapshot', 'break']
        code = str(op)
        start = code.index('static void write_snapshot0(', code.index('\nint Kernel('))
        assert 'devitocomp_view(u_vec->data,' in code[start:code.index('\n}\n', start)]
        # Two memory layouts, two plans
        assert code.count('devitocomp_plan_create(') == 2

        # The buffer is not even touched
        op.apply(time_m=0, time_M=8)
        assert usave.compression_report().snapshots == 9

    @pytest.mark.parametrize('expr', [
        lambda u: 2*u, lambda u: u + 1, lambda u: u.dx, lambda u: u.laplace
    ])
    def test_not_straight(self, expr, use_root, providers):
        use_root(providers / 'strided')
        e = env()
        u, stencil = e.wave()
        usave = e.save('usave', 9)
        op = e.operator([stencil, Eq(usave, expr(u))])
        assert sequence(op).count('write_snapshot') == 1
        assert 'devitocomp_view(u_vec->data,' not in str(op)

    def test_overwritten_source(self, use_root, providers):
        """Saved after its source was overwritten, a snapshot would be another."""
        use_root(providers / 'strided')
        results = []
        for c in (None, DevitoComp()):
            e = Environment(c, language='openmp')
            f = Function(name='f', grid=e.grid)
            f.data[:] = 1
            usave = e.save('usave', 5)
            e.run([Eq(usave, f), Eq(f, f + e.time)], time_M=4)
            results.append(dense(usave))
        assert np.array_equal(*results) and results[0].max() == 7.


class TestReads:

    @pytest.mark.parametrize('backward', [False, True])
    def test_each_snapshot_is_decoded_once(self, backward):
        """Whatever time derivatives are taken, in either direction."""
        e = env()
        _, usave = forward(e, n=12, time_order=2)
        g = Function(name='g', grid=e.grid)
        v = TimeFunction(name='v', grid=e.grid)
        step = Eq(v.backward, v + 1) if backward else Eq(v.forward, v + 1)
        op = e.operator([step, Inc(g, usave.dt2*v)])
        assert sequence(op).count('read_snapshot') == 3
        op.apply(time_m=1, time_M=10)
        report = usave.compression_report()
        assert [i.decompressions for i in report.per_snapshot if i.index > 0] == [1]*11

    def test_unchanged_index(self):
        """A subsampled function read in every step is decoded when the index changes."""
        e = env()
        u, stencil = e.wave()
        t_sub = ConditionalDimension('t_sub', parent=e.time, factor=4)
        usave = e.save('usave', 4, time_dim=t_sub)
        e.run([stencil, Eq(usave, u)], time_m=0, time_M=15)
        x, y, z = e.grid.dimensions
        h = TimeFunction(name='h', grid=e.grid)
        op = e.operator(Eq(h.forward, h + usave[2, x, y, z]))
        op.apply(time_M=9)
        reads = [i.decompressions for i in usave.compression_report().per_snapshot]
        assert reads == [0, 0, 1, 0]

    def test_rewritten_snapshot_is_decoded_again(self):
        """What was remembered as decoded is forgotten once it is written."""
        results = []
        for c in (None, DevitoComp()):
            e = Environment(c, language='openmp')
            x, y, z = e.grid.dimensions
            src = sparse(e, 'src', nt=5)
            usave = e.save('usave', 5)
            usave.data[:] = 1.
            h = TimeFunction(name='h', grid=e.grid)
            # The injection keeps Devito from splitting the time loop
            e.run([Eq(h.forward, h + usave[1, x, y, z])] +
                  src.inject(field=h.forward, expr=src) + [Eq(usave, h.forward + 5)],
                  time_m=0, time_M=4)
            results.append((np.array(h.data), dense(usave)))
        for a, b in zip(*results, strict=True):
            assert np.array_equal(a, b)
        assert results[0][0].max() > 5

    def test_no_halo_without_stencils(self):
        """What is read point by point needs no halo, hence no staging."""
        e = env()
        _, usave = forward(e, space_order=4)
        g = Function(name='g', grid=e.grid)
        assert 'usaveb0[x][y][z]' in body(e.operator(Eq(g, usave)))
        assert 'usaveb0[x + 4]' in body(e.operator(Eq(g, usave.laplace + usave)))

    def test_buffers_are_shared(self):
        e = env()
        _, usave = forward(e)
        g, h = (Function(name=i, grid=e.grid) for i in 'gh')
        op = e.operator([Inc(g, usave + usave.forward), Inc(h, usave*g)])
        assert sequence(op).count('read_snapshot') == 2


class TestRolling:

    def test_structure(self):
        e = env()
        u, stencil = propagated(e)
        op = e.operator(stencil)
        assert sequence(op) == ['read_snapshot', 'read_snapshot', 'for', 'read_snapshot',
                                'write_snapshot', 'break']
        assert 'db0' not in body(op) or '%(3)' in body(op)
        op.apply(time_m=1, time_M=7)
        report = u.compression_report()
        assert [i.index for i in report.per_snapshot] == list(range(2, 9))
        assert sum(i.decompressions for i in report.per_snapshot) == 0

    @pytest.mark.parametrize('name', [
        i for i in programs if i.startswith('propagate')
        # Which starts from snapshots
        and i != 'propagate_saved_from_data'
    ])
    def test_propagation_is_exact(self, name, use_root, providers):
        """What is propagated is not what compression made of it."""
        use_root(providers / 'lossy')
        reference = programs[name](Environment(None, language='openmp'))
        found = programs[name](Environment(DevitoComp(error=0.05), language='openmp'))
        lossy = 0
        for k, (expected, amplification) in reference.items():
            if amplification:
                lossy += np.max(np.abs(expected - found[k][0]))
            else:
                assert np.array_equal(expected, found[k][0]), k
        # The test is about something
        assert lossy > 0

    def test_last_snapshot_is_exact(self, use_root, providers):
        """Each error is that of one compression: none is propagated."""
        use_root(providers / 'lossy')
        expected = programs['propagate_saved'](Environment(None))['u'][0]
        found = programs['propagate_saved'](Environment(DevitoComp(error=0.05)))['u'][0]
        for a, b in zip(expected, found, strict=True):
            assert np.max(np.abs(a - b)) <= 0.05*np.max(np.abs(a))


class TestRefused:

    def test_aliasing_with_stencil(self):
        e = env()
        _, usave = forward(e)
        x, y, z = e.grid.dimensions
        with pytest.raises(CompilationError, match='usave.*time indices used: .*'):
            e.operator(Eq(usave, usave[2, x + 1, y, z] + 1))

    def test_data_dependent_index(self):
        e = env()
        _, usave = forward(e)
        x, y, z = e.grid.dimensions
        index = TimeFunction(name='index', dimensions=(e.time,), shape=(9,),
                             time_dim=e.time, dtype=np.int32)
        g = Function(name='g', grid=e.grid)
        with pytest.raises(CompilationError, match='time index.*values computed'):
            e.operator(Eq(g, usave[index[e.time], x, y, z]))

    def test_constant_symbol_index(self):
        """A Constant as time index is fine."""
        e = env()
        _, usave = forward(e)
        x, y, z = e.grid.dimensions
        k = Constant(name='k', dtype=np.int32, value=3)
        g = Function(name='g', grid=e.grid)
        op = e.operator(Eq(g, usave[k, x, y, z]))
        for i in (3, 6):
            op.apply(k=i)
            assert np.array_equal(g.data, usave.data[i])


class TestBuildCost:

    def test_no_work_in_vain(self):
        """No provider is looked for unless there is something to compress."""
        code = """
            import os
            os.environ['DEVITOCOMP_ROOT'] = '/nonexistent'
            from devito import *
            import devitocomp_plugin
            grid = Grid(shape=(4, 4))
            u = devitocomp_plugin.TimeFunction(name='u', grid=grid)
            Operator(Eq(u.forward, u + 1)).apply(time_M=2)
        """
        done = subprocess.run([sys.executable, '-c', textwrap.dedent(code)],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class TestRuntimeOptions:

    def test_stability_check(self, monkeypatch):
        """`errctl=max` finds NaNs, in an Operator that saves compressed."""
        # With -ffast-math compilers take NaNs for impossible
        monkeypatch.setitem(configuration, 'safe-math', True)
        e = env()
        u = TimeFunction(name='u', grid=e.grid)
        usave = e.save('usave', 300)
        op = e.operator([Eq(u.forward, u*1e6 + 1), Eq(usave, u)],
                        opt=('advanced', {'errctl': 'max'}))
        with pytest.raises(ExecutionError, match='nan/inf'):
            op.apply(time_m=0, time_M=299)
        # The store is not left in use
        usave.clear()
        assert usave.compression_report().snapshots == 0

    def test_threads(self):
        """The provider gets the Operator's number of threads."""
        e = env()
        u, stencil = e.wave()
        usave = e.save('usave', 9)
        op = e.operator([stencil, Eq(usave, u)])
        assert 'devitocomp_host(nthreads)' in str(op)
        op.apply(time_M=8, nthreads=1)
        e = env(language='C')
        u, stencil = e.wave()
        op = e.operator([stencil, Eq(e.save('usave', 9), u)])
        assert 'devitocomp_host(1)' in str(op)

    def test_several_operators_share_a_function(self):
        e = env()
        _, usave = forward(e)
        g = Function(name='g', grid=e.grid)
        ops = [e.operator(Inc(g, i*usave)) for i in range(1, 4)]
        for op in ops:
            op.apply()
        assert np.allclose(g.data, 6*np.sum(dense(usave), axis=0), rtol=1e-5)

    def test_unknown_devito_is_refused(self, monkeypatch):
        from devitocomp_plugin import compatibility
        monkeypatch.setattr(compatibility, 'version', lambda _: '4.9.0')
        with pytest.raises(ImportError, match=r'4\.8\.23.*4\.9\.0'):
            compatibility.check_devito()
        monkeypatch.setattr(compatibility, 'version', lambda _: '4.8.23+3.gabcdef')
        compatibility.check_devito()


