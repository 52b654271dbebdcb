"""What happens when compression fails at run time."""

import gc
import os
import threading

import numpy as np
import pytest
from devito import Eq, Function, Grid, Operator, TimeFunction

import devitocomp_plugin as dcp
from devitocomp_plugin.exceptions import CompressionError, ProviderError, StoreError


@pytest.fixture
def faulty(use_root, providers, monkeypatch):
    """A function that selects the faulty provider, and its fault."""
    use_root(providers / 'faulty')
    monkeypatch.delenv('DEVITOCOMP_FAULT', raising=False)

    def select(fault):
        if fault is None:
            monkeypatch.delenv('DEVITOCOMP_FAULT', raising=False)
        else:
            monkeypatch.setenv('DEVITOCOMP_FAULT', fault)
    return select


class Problem:

    """Saves `time + 1` everywhere at each step, and sums it up."""

    def __init__(self, n=9, shape=(6, 7)):
        self.grid = Grid(shape=shape)
        self.u = TimeFunction(name='u', grid=self.grid)
        self.usave = dcp.TimeFunction(name='usave', grid=self.grid, save=n,
                                      compression='devitocomp')
        self.g = Function(name='g', grid=self.grid)
        self.forward = Operator([Eq(self.u.forward, self.u + 1), Eq(self.usave, self.u)])
        self.adjoint = Operator(Eq(self.g, self.g + self.usave))

    def save(self):
        self.u.data[:] = 1
        self.forward.apply(time_m=0, time_M=self.usave.save - 1)

    def sum(self):
        self.g.data[:] = 0
        self.adjoint.apply()
        return float(self.g.data[2, 3])

    @property
    def stored(self):
        return [float(i[2, 3]) for i in self.usave.data]


def test_compress_fails(faulty):
    problem = Problem()
    faulty('compress:4')
    with pytest.raises(CompressionError) as e:
        problem.save()
    e = e.value
    assert (e.function, e.snapshot, e.status_name) == ('usave', 4, 'PROVIDER_ERROR')
    assert e.action == 'compress' and 'injected failure' in e.message
    assert 'faulty' in e.provider
    for i in ('usave', 'snapshot 4', 'faulty', 'PROVIDER_ERROR', 'injected failure'):
        assert i in str(e)

    # What was committed earlier is there, the next run works
    faulty(None)
    assert problem.stored == [1, 2, 3, 4, 0, 0, 0, 0, 0]
    problem.save()
    assert problem.stored == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert problem.sum() == 45


def test_run_stops_early(faulty):
    """No hours of propagation into a store that has failed."""
    problem = Problem()
    faulty('compress:4')
    with pytest.raises(CompressionError):
        problem.save()
    # One slot holds time 4, the other 5: there was no further step
    assert sorted(np.array(problem.u.data)[:, 2, 3].tolist()) == [5, 6]


def test_rewriting_fails(faulty):
    """The previous content of a snapshot survives."""
    problem = Problem()
    problem.save()
    problem.u.data[:] = 11
    faulty('compress:2')
    with pytest.raises(CompressionError, match='snapshot 2'):
        problem.forward.apply(time_m=0, time_M=8)
    faulty(None)
    assert problem.stored == [11, 12, 3, 4, 5, 6, 7, 8, 9]


def test_decompress_fails(faulty):
    problem = Problem()
    problem.save()
    faulty('decompress:3')
    with pytest.raises(CompressionError) as e:
        problem.sum()
    assert e.value.snapshot == 3 and e.value.action == 'decompress'
    faulty(None)
    assert problem.sum() == 45


@pytest.mark.parametrize('fault,words', [
    ('status:2', ('99', 'PROVIDER_ERROR')),
    ('overlong:2', ('bytes',)),
    ('overrun:2', ('wrote beyond',)),
    ('nomessage', ()),
])
def test_misbehaviour(fault, words, faulty):
    problem = Problem()
    faulty(fault)
    with pytest.raises(CompressionError) as e:
        problem.save()
    snapshot = 0 if fault == 'nomessage' else 2
    assert e.value.snapshot == snapshot
    for i in ('usave', f'snapshot {snapshot}', *words):
        assert i in str(e.value)
    faulty(None)
    assert problem.stored == [float(i + 1) for i in range(snapshot)] + \
        [0.]*(9 - snapshot)
    problem.save()
    assert problem.sum() == 45


def test_no_bytes(faulty):
    """A payload of no bytes is as good as any, but this provider cannot decode it."""
    problem = Problem()
    faulty('zerobytes:2')
    problem.save()
    faulty(None)
    with pytest.raises(CompressionError, match='snapshot 2'):
        problem.sum()


def test_plan_fails(faulty):
    """A plan that cannot be created, though it could when the function was."""
    problem = Problem()
    problem.usave.data[0] = 1.
    problem.usave._store.begin(0)
    problem.usave._store.end()
    faulty('plan')
    with pytest.raises(CompressionError, match='create a plan of `usave`.*injected'):
        problem.save()
    faulty(None)
    problem.save()
    assert problem.sum() == 45


@pytest.mark.parametrize('fault,word', [
    ('plan', 'injected'), ('align0', '0'), ('align3', '3'), ('alignhuge', str(2**40)),
    ('maxhuge', str(2**63)), ('sidecarhuge', 'sidecar'), ('limitsfail', 'limits'),
])
def test_refused_at_construction(fault, word, faulty):
    faulty(fault)
    with pytest.raises(ProviderError, match=word):
        Problem()
    faulty(None)
    Problem().save()


def test_from_python(faulty):
    """The same holds for `.data`."""
    problem = Problem()
    problem.usave.data[1] = 3.
    faulty('compress:0')
    other = Problem()
    with pytest.raises(CompressionError, match='compress snapshot 5 of `usave`'):
        other.usave.data[5] = 1.
    faulty('decompress:0')
    third = Problem()
    third.usave.data[5] = 1.
    with pytest.raises(CompressionError, match='decompress snapshot 5 of `usave`'):
        third.usave.data[5]
    assert problem.stored[1] == 3.


def test_in_use():
    """Two runs that use the same snapshots at the same time are refused."""
    problem = Problem(n=200, shape=(300, 300))
    problem.save()
    errors, done = [], []

    def work():
        try:
            problem.adjoint.apply()
            done.append(1)
        except StoreError as e:
            errors.append(str(e))

    def probe():
        while not (errors or done):
            try:
                problem.usave.data[3] = 1.
            except StoreError as e:
                errors.append(str(e))

    problem.usave._store.begin(0)
    with pytest.raises(StoreError, match='in use'):
        problem.adjoint.apply()
    with pytest.raises(StoreError, match='in use'):
        problem.usave.data[0]
    problem.usave._store.end()
    threads = [threading.Thread(target=i) for i in (work, probe)]
    for i in threads:
        i.start()
    for i in threads:
        i.join()
    assert len(errors) + len(done) >= 1
    assert all('in use' in i for i in errors)
    problem.adjoint.apply()


def test_changed_root(use_root, providers, copy_of_dummy):
    """Operators keep the provider that they were built with, and new ones get the new."""
    use_root(copy_of_dummy)
    first = Problem()
    first.save()
    use_root(providers / 'strided')
    second = Problem()
    second.save()
    assert first.forward._provider.name == 'dummy'
    assert second.forward._provider.name == 'strided'
    assert str(first.forward) != str(second.forward)
    # The other's snapshots are refused, not misread
    with pytest.raises(StoreError, match='dummy.*strided'):
        second.adjoint.apply(usave=first.usave)
    with pytest.raises(StoreError, match='strided.*dummy'):
        first.adjoint.apply(usave=second.usave)
    # Once there are none, it may be used
    first.usave.clear()
    second.forward.apply(usave=first.usave, time_m=0, time_M=8)
    assert first.usave.compression_report().provider.startswith('strided')
    assert second.sum() == 45


def test_no_leaks(faulty):
    """Neither memory nor descriptors, whether runs fail or not."""
    import psutil
    process = psutil.Process(os.getpid())
    shape = (200, 200)
    problem = Problem(shape=shape)

    def cycle():
        faulty('compress:4')
        with pytest.raises(CompressionError):
            problem.save()
        faulty(None)
        problem.save()
        assert problem.sum() == 45
        problem.usave.clear()
        other = dcp.TimeFunction(name='usave', grid=problem.grid, save=9,
                                 compression='devitocomp')
        problem.forward.apply(usave=other, time_m=0, time_M=8)

    for _ in range(5):
        cycle()
    gc.collect()
    files, memory = process.num_fds(), process.memory_info().rss
    for _ in range(60):
        cycle()
    gc.collect()
    assert process.num_fds() <= files
    # One leaked history per cycle would be 86 MB
    assert process.memory_info().rss - memory < 20e6


def test_never_silently_dense():
    """A function that claims to be compressed holds no dense history."""
    problem = Problem()
    problem.save()
    assert problem.usave._data is None
    assert not isinstance(problem.usave.data, np.ndarray)
    with pytest.raises(NotImplementedError):
        problem.usave._data_allocated  # noqa: B018
