"""Stores on disk: layers, re-opening, damage, crashes, temporary directories."""

import contextlib
import copy
import errno
import gc
import json
import logging
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from devito import Constant, Eq, Function, Grid, Operator, TimeFunction
from test_mpi import mpirun

import devitocomp_plugin as dcp
from devitocomp_plugin import DevitoComp, Disk, DiskHost
from devitocomp_plugin.exceptions import CompressionError, StoreError
from devitocomp_plugin.layers import as_layers

HERE = Path(__file__).resolve().parent
SHAPE = (4, 5)


def make(name='usave', shape=SHAPE, save=6, layers=DiskHost, **kwargs):
    kwargs.setdefault('compression', 'devitocomp')
    kwargs.setdefault('grid', Grid(shape=shape))
    return dcp.TimeFunction(name=name, save=save, layers=layers, **kwargs)


def values(f, seed=0):
    return np.random.default_rng(seed).random(f.shape).astype(f.dtype)


def filled(directory, seed=0, **kwargs):
    """A function with all snapshots stored, and their values."""
    f = make(serialization=directory, **kwargs)
    data = values(f, seed)
    f.data[:] = data
    return f, data


def closed(directory, **kwargs):
    """The directory of a store that nobody uses any more, and the values in it."""
    f, data = filled(directory, **kwargs)
    path = f._fnbase
    del f
    gc.collect()
    return path, data


def reopen(path, **kwargs):
    return make(serialization=path, **kwargs)


def python(code, *args, ok=True):
    """Run code in a new process, whose first lines are those that set the scene."""
    scene = ('import os, sys; import numpy as np; sys.path.insert(0, sys.argv[1]);'
             'from test_disk import *\n')
    cmd = [sys.executable, '-c', scene + code, str(HERE), *map(str, args)]
    done = subprocess.run(cmd, capture_output=True, text=True, timeout=60)
    if ok:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary directories."""
    folder = tmp_path / 'tmp'
    folder.mkdir()
    monkeypatch.setenv('TMPDIR', str(folder))
    monkeypatch.setattr(tempfile, 'tempdir', None)
    return folder


def stores_in(folder):
    """What the package has put into a folder of temporary things."""
    return [i for i in os.listdir(folder) if i.startswith('devitocomp-')]


class TestArguments:

    @pytest.mark.parametrize('value,expected', [
        (Disk, Disk), ('disk', Disk), (('disk',), Disk), (DiskHost, DiskHost),
        ('disk-host', DiskHost), (('disk', 'host'), DiskHost),
        (['Disk', 'Host'], DiskHost)
    ])
    def test_layers(self, value, expected):
        assert as_layers(value) is expected
        assert make(layers=value).layers is expected

    @pytest.mark.parametrize('layers', [None, 'host'])
    def test_serialization_without_disk(self, layers, tmp_path):
        with pytest.raises(ValueError, match="pass layers='disk'"):
            make(layers=layers, serialization=tmp_path)

    @pytest.mark.parametrize('value', ['', 3, True, b'x'])
    def test_no_directory(self, value):
        with pytest.raises(ValueError, match='not a directory: pass a path'):
            make(serialization=value)

    def test_names(self, tmp_path):
        f = make(serialization=tmp_path)
        assert f._fnbase is None and f._fnames == ()
        f.data[0] = 1
        assert Path(f._fnbase).parent == tmp_path and isinstance(f._fnbase, str)
        assert len(f._fnames) == 3 and all(os.path.isfile(i) for i in f._fnames)
        assert all(i.startswith(f._fnbase) for i in f._fnames)
        assert f.forward._fnbase == f._fnbase
        assert make(layers='host')._fnbase is None


@pytest.mark.parametrize('layers', [Disk, DiskHost])
class TestLikeMemory:

    def test_data(self, layers, tmp_path):
        f, expected = filled(tmp_path, layers=layers)
        assert np.array_equal(np.asarray(f.data), expected)
        f.data[2] += 1
        f.data[4, 1] = 3
        expected[2] += 1
        expected[4, 1] = 3
        for key in (5, slice(None, None, -2), (slice(1, 3), 2)):
            assert np.array_equal(f.data[key], expected[key])

    def test_initializer_and_clear(self, layers, tmp_path):
        f = make(layers=layers, serialization=tmp_path, initializer=lambda x: x.fill(2))
        assert np.all(f.data == 2)
        size = os.path.getsize(f._fnames[2])
        f.clear()
        assert np.all(f.data == 0) and os.path.getsize(f._fnames[2]) < size
        assert f.compression_report().snapshots == 0
        f.data[3] = 1
        assert [float(i.max()) for i in f.data] == [0, 0, 0, 1, 0, 0]

    def test_clear_before_access(self, layers, tmp_path):
        path, _ = closed(tmp_path, layers=layers)
        make(layers=layers, serialization=tmp_path / 'other').clear()
        assert not (tmp_path / 'other').exists()
        reopen(path, layers=layers).clear()
        assert np.all(reopen(path, layers=layers).data == 0)

    def test_report(self, layers, tmp_path):
        f, data = filled(tmp_path, layers=layers)
        report = f.compression_report()
        assert report.snapshots == 6 and report.raw_bytes == data.nbytes
        assert report.path == f._fnbase and f._fnbase in str(report)
        assert report.compress_seconds > 0

    def test_report_of_reopened(self, layers, tmp_path):
        path, data = closed(tmp_path, layers=layers)
        report = reopen(path, layers=layers).compression_report()
        assert report.snapshots == 6 and 'dummy' in report.provider
        assert report.stored_bytes == data.nbytes + 6*8 and report.error_bound == 0

    def test_operators(self, layers, tmp_path):
        """Save, derivatives in both directions, a window, out-of-order rewriting."""
        results = []
        grid = Grid(shape=(9, 8))
        for kwargs in ({'compression': None}, {'layers': layers,
                                               'serialization': tmp_path}):
            f = dcp.TimeFunction(name='f', grid=grid, save=12, time_order=2,
                                 **{'compression': 'devitocomp', **kwargs})
            u = TimeFunction(name='u', grid=grid)
            g = Function(name='g', grid=grid)
            Operator([Eq(u.forward, u + 1), Eq(f, u*u)]).apply(time_M=11)
            f.data[3] = 7
            sums = Operator(Eq(g, g + f*f.backward + f.forward, implicit_dims=[]))
            sums.apply(time_m=2, time_M=8)
            f.data[5] = np.array(g.data)
            results.append((np.array(f.data), np.array(g.data)))
        assert np.array_equal(results[0][0], results[1][0])
        assert np.array_equal(results[0][1], results[1][1])

    def test_override(self, layers, tmp_path):
        c = Constant(name='c', value=2.)
        f, g = make('f', layers=layers), make('g', layers=layers, serialization=tmp_path)
        op = Operator(Eq(f, c*3))
        op.apply(f=g)
        assert np.all(g.data == 6) and np.all(f.data == 0)
        with pytest.raises(Exception, match='their layers differ'):
            op.apply(f=make('h', layers='host'))

    def test_autotuning(self, layers, tmp_path, temporary):
        """Trial runs write elsewhere, and leave nothing behind."""
        grid = Grid(shape=(16, 16, 16))
        f = make('f', grid=grid, save=30, layers=layers, serialization=tmp_path / 'here')
        f.data[29] = 5
        u = TimeFunction(name='u', grid=grid)
        op = Operator([Eq(u.forward, u + 1), Eq(f, u)])
        op.apply(time_M=27, autotune=('basic', 'preemptive'))
        gc.collect()
        assert [float(i.min()) for i in f.data] == [*range(28), 0, 5]
        assert stores_in(temporary) == [] and len(os.listdir(tmp_path / 'here')) == 1


class TestReopening:

    def test_by_name(self, tmp_path):
        f, data = filled(tmp_path)
        for path in (f._fnbase, Path(f._fnbase), os.path.relpath(f._fnbase)):
            g = reopen(path, name='other')
            assert np.array_equal(np.asarray(g.data), data)
            assert g._fnbase == f._fnbase
        # What the writer writes is seen
        f.data[1] = 9
        assert np.all(g.data[1] == 9)

    def test_other_process(self, tmp_path):
        path, data = closed(tmp_path)
        np.save(tmp_path / 'data.npy', data)
        python('''
f = reopen(sys.argv[2])
assert np.array_equal(np.asarray(f.data), np.load(sys.argv[3]))
f.data[2] = 4
''', path, tmp_path / 'data.npy')
        data[2] = 4
        assert np.array_equal(np.asarray(reopen(path).data), data)

    def test_renamed(self, tmp_path):
        path, data = closed(tmp_path)
        os.rename(path, tmp_path / 'mine')
        assert np.array_equal(np.asarray(reopen(tmp_path / 'mine').data), data)

    def test_write_starts_afresh(self, tmp_path):
        first, data = closed(tmp_path)
        f = make(serialization=tmp_path)
        f.data[0] = 1
        assert f._fnbase != first and len(os.listdir(tmp_path)) == 2
        assert [float(i.max()) for i in f.data] == [1, 0, 0, 0, 0, 0]
        assert np.array_equal(np.asarray(reopen(first).data), data)
        # So does a part of a snapshot
        h = make(serialization=tmp_path)
        h.data[0, 1] = 2
        assert h._fnbase not in (first, f._fnbase) and float(h.data[0].sum()) == 10
        # So does an operator
        g = make(serialization=tmp_path)
        Operator(Eq(g, 3)).apply(time_m=0, time_M=2)
        assert g._fnbase not in (first, f._fnbase)
        assert [float(i.max()) for i in g.data] == [3, 3, 3, 0, 0, 0]

    def test_read_finds_the_newest(self, tmp_path, caplog):
        for i in range(3):
            path, data = closed(tmp_path, seed=i)
            closed(tmp_path, name='vsave')
        f = make(serialization=tmp_path)
        with caplog.at_level(logging.INFO):
            assert np.array_equal(f.data[3], data[3])
        assert f._fnbase == path and path in caplog.text
        # An operator that reads does, too
        g, s = make(serialization=tmp_path), Function(name='s', grid=Grid(shape=SHAPE))
        Operator(Eq(s, s + g)).apply()
        assert g._fnbase == path and np.allclose(np.array(s.data), data.sum(axis=0))

    def test_nothing_to_read(self, tmp_path, caplog):
        f = make(serialization=tmp_path)
        assert np.all(f.data == 0) and os.listdir(tmp_path) == []
        assert caplog.text.count('no store of `usave`') == 1
        # It is still undecided
        path, data = closed(tmp_path)
        assert np.array_equal(f.data[1], data[1]) and f._fnbase == path

    def test_store_that_is_gone(self, tmp_path):
        path, _ = closed(tmp_path)
        shutil.rmtree(path)
        with pytest.raises(StoreError, match=f'{path}.*not there any more'):
            reopen(path).data[0]

    def test_read_only(self, tmp_path):
        path, data = closed(tmp_path)
        for folder, _, files in os.walk(path):
            os.chmod(folder, 0o555)
            for i in files:
                os.chmod(os.path.join(folder, i), 0o444)
        f = reopen(path)
        with not_root(tmp_path):
            assert np.array_equal(np.asarray(f.data), data)
            with pytest.raises(StoreError, match=f'`usave`.*{path}.*[Pp]ermission'):
                f.data[0] = 1
            with pytest.raises(StoreError, match=path):
                reopen(path).data[0] = 1
            with pytest.raises(StoreError, match=path):
                f.clear()
            assert np.array_equal(np.asarray(f.data), data)

    @pytest.mark.parametrize('kwargs,differing', [
        ({'shape': (4, 6)}, ['shape is [4, 5] in the store and [4, 6] here',
                             'grid.shape is [4, 5] in the store and [4, 6] here',
                             'mpi.part.y']),
        ({'save': 7}, ['save is 6 in the store and 7 here']),
        ({'compression': DevitoComp(error=0.5)},
         ["compression is None in the store and '0.5' here"]),
        ({'grid': Grid(shape=SHAPE, extent=(3., 1.))},
         ['grid.extent is [1.0, 1.0] in the store and [3.0, 1.0] here']),
        ({'grid': Grid(shape=SHAPE, origin=(0., 2.))}, ['grid.origin']),
        ({'staggered': 'x'}, ['staggered']),
    ])
    def test_mismatch(self, kwargs, differing, tmp_path):
        path, _ = closed(tmp_path)
        if 'staggered' in kwargs:
            grid = Grid(shape=SHAPE)
            kwargs = {'grid': grid, 'staggered': grid.dimensions[0]}
        for access in (lambda f: f.data[0], lambda f: f.data.fill(1)):
            f = reopen(path, **kwargs)
            with pytest.raises(StoreError) as e:
                access(f)
            assert path in str(e.value) and '`usave`' in str(e.value)
            for i in differing:
                assert i in str(e.value)

    def test_dtype(self, tmp_path, use_root, providers):
        use_root(providers / 'strided')
        path, _ = closed(tmp_path)
        with pytest.raises(StoreError, match='dtype is .float32. in the store and'):
            reopen(path, dtype=np.float64).data[0]

    def test_other_provider(self, tmp_path, use_root, providers):
        path, data = closed(tmp_path)
        use_root(providers / 'strided')
        f = reopen(path)
        for access in (lambda: f.data[0], lambda: f.data.fill(1)):
            with pytest.raises(StoreError, match='compressed by dummy.*by strided'):
                access()
        use_root(None)
        assert np.array_equal(np.asarray(reopen(path).data), data)
        # An empty store is anybody's
        f.clear()
        use_root(providers / 'strided')
        f.data[1] = 2
        manifest = json.loads(Path(f._fnames[0]).read_text())
        assert manifest['provider']['name'] == 'strided'

    def test_format_version(self, tmp_path):
        path, _ = closed(tmp_path)
        manifest = Path(path, 'rank00000', 'manifest.json')
        text = manifest.read_text()
        manifest.write_text(text.replace('"format": 1', '"format": 99'))
        with pytest.raises(StoreError, match='format version 99, and only 1'):
            reopen(path).data[0]
        manifest.write_text(text)
        with open(manifest.with_name('snapshots.index'), 'r+b') as f:
            f.seek(12)
            f.write(struct.pack('=I', 77))
        with pytest.raises(StoreError, match='snapshots.index has format version 77'):
            reopen(path).data[0]


@contextlib.contextmanager
def not_root(folder):
    """Lets the system check permissions."""
    if os.geteuid() != 0:
        yield
        return
    opened = [i for i in (folder, *folder.parents) if not i.stat().st_mode & 0o001]
    modes = [i.stat().st_mode for i in opened]
    for i, mode in zip(opened, modes, strict=True):
        i.chmod(mode | 0o011)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for i, mode in zip(opened, modes, strict=True):
            i.chmod(mode)


class TestWriters:

    def test_same_process(self, tmp_path):
        """
        One after the other, as Devito may keep functions that were dropped; not during a
        run.
        """
        f, data = filled(tmp_path)
        g = reopen(f._fnbase)
        for i, (x, y) in enumerate([(f, g), (g, f), (f, g), (f, f)]):
            x.data[i] = i
            data[i] = i
            for z in (x, y):
                assert np.array_equal(np.asarray(z.data), data)
        op = Operator(Eq(g, 7))
        f._store.begin(0)
        match = rf'{f._fnbase}.*process {os.getpid()} on .* is writing'
        with pytest.raises(StoreError, match=match):
            g.data[0] = 1
        with pytest.raises(StoreError, match=match):
            op.apply()
        f._store.end()
        assert np.array_equal(np.asarray(g.data), data)
        op.apply()
        assert np.all(f.data == 7)

    def test_temporary(self, temporary):
        """The owner of a temporary store stays the only one that writes."""
        f, data = filled(None)
        with pytest.raises(StoreError, match='is writing to that store'):
            reopen(f._fnbase).data[0] = 1
        f.data[0] = 1

    def test_other_process(self, tmp_path):
        f, data = filled(tmp_path)
        done = python('''
f = reopen(sys.argv[2])
assert f.data[1].max() > 0
f.data[1] = 1
''', f._fnbase, ok=False)
        assert done.returncode == 1 and f'process {os.getpid()} on' in done.stderr
        assert np.array_equal(np.asarray(f.data), data)

    def test_no_locks(self, tmp_path, monkeypatch, caplog):
        """On file systems without, users are told to take care themselves."""
        def flock(fd, operation):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        monkeypatch.setattr('fcntl.flock', flock)
        path, data = closed(tmp_path)
        assert f'{path}/rank00000/lock cannot be locked' in caplog.text
        assert np.array_equal(np.asarray(reopen(path).data), data)

    def test_fork(self, tmp_path, temporary):
        """A fork does not write, and does not remove what is its parent's."""
        f, data = filled(None)
        pid = os.fork()
        if pid == 0:
            try:
                f.data[0] = 1
            except CompressionError:
                del f
                gc.collect()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert np.array_equal(np.asarray(f.data), data)
        f.data[0] = 1


class TestCrashes:

    @pytest.mark.parametrize('rewrite', [False, True])
    def test_kill_while_writing(self, rewrite, tmp_path):
        """Every snapshot committed before is there, and no other."""
        code = '''
f = make(shape=(64, 64), save=200, serialization=sys.argv[2])
for k in range(10):
    for i in range(200):
        f.data[i] = 1000*k + i + 1
        print(k, i, f._fnbase, flush=True)
'''
        process = subprocess.Popen(
            [sys.executable, '-c', 'import sys; sys.path.insert(0, sys.argv[1]);'
             'from test_disk import *\n' + code, str(HERE), str(tmp_path)],
            stdout=subprocess.PIPE, text=True)
        wanted = (3, 77) if rewrite else (0, 123)
        for line in process.stdout:
            if not line[:1].isdigit():
                continue
            round_, last, path = line.split()
            if (int(round_), int(last)) == wanted:
                break
        process.send_signal(signal.SIGKILL)
        rest = [i for i in process.stdout.read().splitlines(keepends=True)
                if i.endswith('\n')]
        process.wait()
        if rest:
            round_, last, _ = rest[-1].split()
        round_, last = int(round_), int(last)

        f = reopen(path, shape=(64, 64), save=200)
        for i, snapshot in enumerate(f.data):
            held = 1000*round_ + i + 1 if i <= last else \
                1000*(round_ - 1) + i + 1 if round_ else 0
            # One more may have been committed, and not been told any more
            possible = [held, 1000*round_ + i + 1] if i == last + 1 else [held]
            assert snapshot.min() == snapshot.max() and snapshot[0, 0] in possible
        f.data[0] = 5
        assert np.all(f.data[0] == 5)

    def test_kill_before_there_is_a_store(self, tmp_path):
        """What was not made completely is not taken for a store."""
        path, data = closed(tmp_path)
        unfinished = tmp_path / 'usave-99990101T000000.000000-00000000' / 'rank00000'
        shutil.copytree(Path(path, 'rank00000'), unfinished)
        (unfinished / 'manifest.json').unlink()
        assert np.array_equal(make(serialization=tmp_path).data[2], data[2])
        with pytest.raises(StoreError, match='manifest.json is missing'):
            reopen(unfinished.parent).data[0]


def flip(path, offset):
    with open(path, 'r+b') as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 16]))


class TestDamage:

    def store(self, tmp_path):
        path, data = closed(tmp_path)
        folder = Path(path, 'rank00000')
        return path, data, folder / 'snapshots.data', folder / 'snapshots.index'

    def test_payload(self, tmp_path):
        path, data, file, _ = self.store(tmp_path)
        flip(file, 64 + 3*128 + 7)
        f = reopen(path)
        with pytest.raises(CompressionError) as e:
            f.data[3]
        e = e.value
        assert (e.snapshot, e.function, e.action) == (3, 'usave', 'load')
        assert e.status_name == 'CORRUPT_PAYLOAD' and str(file) in str(e)
        # It was no fault of the provider's
        assert 'dummy' not in str(e)
        # The others are fine, and this one can be had again
        assert np.array_equal(f.data[4], data[4])
        f.data[3] = data[3]
        assert np.array_equal(np.asarray(f.data), data)

    def test_sidecar(self, tmp_path):
        path, _, file, _ = self.store(tmp_path)
        flip(file, 64 + 2*128 + 81)
        with pytest.raises(CompressionError, match='snapshot 2.*CORRUPT'):
            np.asarray(reopen(path).data)

    def test_operator(self, tmp_path):
        path, _, file, _ = self.store(tmp_path)
        flip(file, 64 + 3*128 + 7)
        f, s = reopen(path), Function(name='s', grid=Grid(shape=SHAPE))
        with pytest.raises(CompressionError, match=f'snapshot 3 of `usave`.*{file}'):
            Operator(Eq(s, s + f)).apply()

    def test_index(self, tmp_path):
        path, data, _, file = self.store(tmp_path)
        flip(file, 384 + 5*128 + 24)
        f = reopen(path)
        with pytest.raises(CompressionError, match=f'snapshot 5.*{file} is damaged'):
            f.data[5]
        assert np.array_equal(f.data[0], data[0])

    @pytest.mark.parametrize('offset,match', [
        (0, 'is a foreign file'), (18, 'damaged header'), (30, 'damaged header'),
        (70, 'damaged header'), (300, 'is damaged')
    ])
    def test_index_header(self, offset, match, tmp_path):
        path, _, _, file = self.store(tmp_path)
        flip(file, offset)
        with pytest.raises(StoreError, match=f'`usave`.*{file} .*{match}'):
            reopen(path).data[0]

    def test_truncated(self, tmp_path):
        path, data, file, index = self.store(tmp_path)
        os.truncate(file, 64 + 4*128 + 30)
        f = reopen(path)
        with pytest.raises(CompressionError, match=f'snapshot 4.*{file} is truncated'):
            f.data[4]
        assert np.array_equal(f.data[3], data[3])
        os.truncate(index, 500)
        with pytest.raises(StoreError, match=f'{index} is truncated'):
            reopen(path).data[0]

    def test_swapped(self, tmp_path):
        """Snapshots with each other, files with those of another store."""
        path, _, file, index = self.store(tmp_path)
        content = bytearray(file.read_bytes())
        content[64:152], content[192:280] = content[192:280], content[64:152]
        before = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(CompressionError, match='snapshot 0.*does not match'):
            reopen(path).data[0]
        file.write_bytes(before)
        _, _, other, other_index = self.store(tmp_path / 'other')
        shutil.copy(other, file)
        with pytest.raises(StoreError, match=f'{file} belongs to another store'):
            reopen(path).data[0]
        file.write_bytes(before)
        shutil.copy(other_index, index)
        with pytest.raises(StoreError, match=f'{index} belongs to another store'):
            reopen(path).data[0]

    @pytest.mark.parametrize('name', ['manifest.json', 'snapshots.index',
                                      'snapshots.data'])
    def test_foreign_or_missing(self, name, tmp_path):
        path, _ = closed(tmp_path)
        file = Path(path, 'rank00000', name)
        file.write_text('{"answer": 42, "text": "' + 1000*'x' + '"}')
        with pytest.raises(StoreError, match=f'{file} is a foreign file'):
            reopen(path).data[0]
        file.unlink()
        with pytest.raises(StoreError, match=str(file)):
            reopen(path).data[0]

    @pytest.mark.parametrize('old,new', [('"save": 6', '"save": 5'), ('{', '['),
                                         ('"dummy"', '"dumb"')])
    def test_manifest(self, old, new, tmp_path):
        path, _ = closed(tmp_path)
        file = Path(path, 'rank00000', 'manifest.json')
        file.write_text(file.read_text().replace(old, new))
        with pytest.raises(StoreError, match=f'{file} is damaged'):
            reopen(path).data[0]


@contextlib.contextmanager
def small_files(limit):
    """Let files grow to that size and no further."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


class TestFullDisk:

    def test_file_limit(self, tmp_path):
        f = make(serialization=tmp_path, shape=(32, 32))
        data = values(f)
        f.data[:2] = data[:2]
        with small_files(3*4096):
            with pytest.raises(CompressionError) as e:
                f.data[2:] = data[2:]
        e = e.value
        assert e.status_name == 'IO_ERROR' and os.strerror(errno.EFBIG) in str(e)
        assert e.snapshot == 2 and f._fnames[2] in str(e) and '`usave`' in str(e)
        assert 'provider' not in str(e)
        # What was there is there, also for somebody else, and it goes on
        for g in (f, reopen(f._fnbase, shape=(32, 32))):
            assert np.array_equal(np.asarray(g.data)[:2], data[:2])
            assert np.all(np.asarray(g.data)[2:] == 0)
        f.data[:] = data
        assert np.array_equal(np.asarray(f.data), data)

    def test_operator(self, tmp_path):
        f = make(serialization=tmp_path, shape=(32, 32))
        u = TimeFunction(name='u', grid=f.grid)
        op = Operator([Eq(u.forward, u + 1), Eq(f, u + 1)])
        # Compile it
        op.apply(usave=make(shape=(32, 32), grid=f.grid), time_M=4)
        u.data[:] = 0
        f.data[5] = 9
        with small_files(3*4096):
            with pytest.raises(CompressionError, match='snapshot 1 of `usave`: IO_ERROR'):
                op.apply(time_m=0, time_M=4)
        assert [float(i.max()) for i in f.data] == [1, 0, 0, 0, 0, 9]

    def test_no_space(self, tmp_path):
        """A file system that is full, at every stage of the making of a store."""
        folder = tmp_path / 'small'
        folder.mkdir()
        size = 64*1024
        if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', folder],
                          capture_output=True).returncode != 0:
            pytest.skip('needs the right to mount a tmpfs')
        try:
            f = make(serialization=folder, shape=(32, 32), save=20)
            with pytest.raises(CompressionError, match='No space left'):
                f.data[:] = values(f)
            n = f.compression_report().snapshots
            assert 5 < n < 20
            assert np.array_equal(np.asarray(f.data)[:n], values(f)[:n])
            g = make('g', serialization=folder)
            with pytest.raises((StoreError, CompressionError), match='No space left'):
                g.data[0] = 1
            f.clear()
            g.data[0] = 1
            del f, g
            gc.collect()
        finally:
            subprocess.run(['umount', folder], check=True)

    def test_no_directory(self, tmp_path):
        (tmp_path / 'file').write_text('')
        with pytest.raises(StoreError, match=f'{tmp_path}/file.*`serialization`'):
            make(serialization=tmp_path / 'file').data[0] = 1

    def test_vanished(self, tmp_path):
        f, _ = filled(tmp_path)
        shutil.rmtree(f._fnbase)
        with pytest.raises(CompressionError, match='has been removed while in use'):
            f.data[0] = 1

    def test_warning(self, tmp_path, caplog, monkeypatch):
        free = shutil.disk_usage(tmp_path).free
        make(serialization=tmp_path).data[0] = 1
        assert 'free in' not in caplog.text
        save = 1 + int(1.5*free/(4*1000**2))
        f = make(serialization=tmp_path, shape=(1000, 1000), save=save)
        f.data[0] = 1
        assert caplog.text.count('`usave`') == 1 and f._fnbase in caplog.text
        assert 'factor of 1.5' in caplog.text

    def test_no_warning_if_lossy(self, tmp_path, caplog, use_root, providers):
        """Compression is counted on, cautiously."""
        use_root(providers / 'lossy')
        free = shutil.disk_usage(tmp_path).free
        for factor, warns in ((3, 0), (5, 1)):
            save = int(factor*free/(4*1000**2))
            make(serialization=tmp_path, shape=(1000, 1000), save=save,
                 compression=DevitoComp(error=1e-2)).data[0] = 1
            assert caplog.text.count('free in') == warns


class TestTemporary:

    def test_vanishes(self, temporary):
        f, data = filled(None)
        path = f._fnbase
        assert os.path.dirname(path) == str(temporary)
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert np.array_equal(np.asarray(f.data), data)
        del f
        gc.collect()
        assert stores_in(temporary) == []

    def test_not_made_for_nothing(self, temporary):
        f = make()
        assert np.all(f.data == 0) and f.compression_report().snapshots == 0
        repr(f.data), copy.deepcopy(f), pickle.dumps(f)
        assert stores_in(temporary) == []

    def test_end_of_process(self, temporary):
        python('f, _ = filled(None); assert os.path.isdir(f._fnbase)')
        python('f, _ = filled(None); raise SystemExit(3)', ok=False)
        python('f, _ = filled(None); raise ValueError', ok=False)
        assert stores_in(temporary) == []

    def test_swept_after_kill(self, temporary, tmp_path):
        kill = '''
f, _ = filled(None)
g, _ = filled(sys.argv[2])
os.kill(os.getpid(), 9)
'''
        named = tmp_path / 'named'
        live, data = filled(None, name='live')
        assert python(kill, named, ok=False).returncode == -9
        assert len(stores_in(temporary)) == 2
        # What looks alike and is not ours, or not known to be dead, stays
        spared = ['devitocomp-x', 'devitocomp-usave-20200101T000000.000000-00000000']
        for i in spared:
            (temporary / i / 'rank00000').mkdir(parents=True)
        (temporary / spared[0] / 'rank00000' / 'lock').write_text('1 here\n')
        python('filled(None)')
        assert sorted(stores_in(temporary)) == sorted(
            [os.path.basename(live._fnbase), *spared])
        assert len(os.listdir(named)) == 1
        assert np.array_equal(np.asarray(live.data), data)

    def test_named_stores_stay(self, tmp_path, temporary):
        path, data = closed(tmp_path / 'named')
        python('f = reopen(sys.argv[2]); f.data[0] = f.data[1]', path)
        data[0] = data[1]
        assert np.array_equal(np.asarray(reopen(path).data), data)


class TestPickling:

    def test_by_path(self, tmp_path):
        f, data = filled(tmp_path, shape=(64, 64), save=200)
        text = pickle.dumps(f)
        assert len(text) < 20_000
        g = pickle.loads(text)
        assert g.layers is not None and g.layers == f.layers
        assert g._fnbase == f._fnbase and not g._store.is_open
        assert np.array_equal(g.data[7], data[7])
        path = f._fnbase
        del f, g
        gc.collect()
        assert np.array_equal(pickle.loads(text).data[7], data[7])
        shutil.rmtree(path)
        with pytest.raises(StoreError, match=f'`usave`.*{path}.*no store any more'):
            pickle.loads(text).data[7]

    def test_other_process(self, tmp_path, temporary):
        """Also of a temporary store, which the other process does not remove."""
        f, data = filled(None)
        (tmp_path / 'f.pkl').write_bytes(pickle.dumps(f))
        assert pickle.loads(pickle.dumps(f))._fnbase == f._fnbase
        python('f = pickle.load(open(sys.argv[2], "rb")); assert f.data[1].max() > 0',
               tmp_path / 'f.pkl')
        assert np.array_equal(np.asarray(f.data), data)
        del f
        gc.collect()
        with pytest.raises(StoreError, match='Temporary ones vanish'):
            pickle.loads((tmp_path / 'f.pkl').read_bytes()).data[0]

    def test_undecided(self, tmp_path):
        f = pickle.loads(pickle.dumps(make(serialization=tmp_path)))
        assert f.serialization == tmp_path and f._fnbase is None
        f.data[0] = 1
        assert Path(f._fnbase).parent == tmp_path

    def test_without_snapshots(self, tmp_path, temporary):
        f, _ = filled(tmp_path / 'named')
        h = reopen(f._fnbase)
        for i in (f, h):
            i.pickle_snapshots = False
            g = pickle.loads(pickle.dumps(i))
            assert g.serialization is None and np.all(g.data == 0)
            g.data[0] = 1
            assert os.path.dirname(g._fnbase) == str(temporary)

    def test_operator(self, tmp_path):
        f, data = filled(tmp_path)
        s = Function(name='s', grid=f.grid)
        op = pickle.loads(pickle.dumps(Operator(Eq(s, s + f))))
        s.data[:] = 0
        op.apply(s=s)
        assert np.allclose(np.array(s.data), data.sum(axis=0))

    @pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy])
    def test_copies(self, copied, tmp_path):
        """Share the files; one of them writes."""
        f, data = filled(tmp_path)
        g = copied(f)
        assert g._store is not f._store and np.array_equal(np.asarray(g.data), data)
        f.data[0] = 2
        assert np.all(g.data[0] == 2)
        with pytest.raises(StoreError, match='is writing to that store'):
            g.data[0] = 3
        assert np.all(f.data[0] == 2)
        # In memory, they are independent
        f = make(layers='host')
        f.data[0] = 1
        g = copied(f)
        g.data[0] = 2
        assert np.all(f.data[0] == 1) and np.all(g.data[0] == 2)


def resources():
    """Files that are open, threads of Python and others."""
    files = [os.readlink(f'/proc/self/fd/{i}') for i in os.listdir('/proc/self/fd')
             if os.path.exists(f'/proc/self/fd/{i}')]
    return sorted(files), threading.active_count(), len(os.listdir('/proc/self/task'))


class TestResources:

    def test_nothing_leaks(self, tmp_path, temporary):
        """Descriptors, threads and temporary files, over 200 runs."""
        grid = Grid(shape=SHAPE)
        f = make('f', grid=grid)
        op = Operator(Eq(f, 2))

        def run(n):
            for i in range(n):
                g = make('f', grid=grid,
                         serialization=None if i % 3 else tmp_path / 'named')
                op.apply(f=g)
                assert g.data[3, 1, 1] == 2
                path = g._fnbase
                del g
                if not i % 3:
                    assert reopen(path, grid=grid).data[2, 0, 0] == 2
            gc.collect()

        run(2)
        before = resources()
        named = len(os.listdir(tmp_path / 'named'))
        run(200)
        assert resources() == before
        assert stores_in(temporary) == []
        assert len(os.listdir(tmp_path / 'named')) == named + 67

    def test_memory_of_disk(self, tmp_path):
        """Does not grow with the number of snapshots."""
        code = '''
f = make(shape=(256, 256), save=int(sys.argv[3]), layers='disk',
         serialization=sys.argv[2])
g, s = Function(name='g', grid=f.grid), Function(name='s', grid=f.grid)
save, read = Operator(Eq(f, g + 1)), Operator(Eq(s, s + f))
save.apply()
read.apply()
assert np.array(s.data)[0, 0] == f.save
with open('/proc/self/status') as status:
    print('peak', [int(i.split()[1]) for i in status if i.startswith('VmHWM')][0])
'''
        peak = []
        for save in (100, 1000):
            out = python(code, tmp_path / str(save), save).stdout
            peak.append(int(out.split('peak')[1]))
        print(f'peak resident memory with 100 and 1000 snapshots: {peak} KB')
        # 900 snapshots more are 230 MB
        assert abs(peak[1] - peak[0]) < 10_000

    def test_memory_of_disk_host(self, tmp_path, monkeypatch):
        monkeypatch.setenv('DEVITOCOMP_STAGING_BYTES', str(4*2**20))
        f = make(shape=(256, 256), save=64, serialization=tmp_path)
        f.data[:] = 1
        assert np.all(f.data == 1)
        assert 3*2**20 < f._store.usage.resident_bytes < 5*2**20
        assert f.nbytes_max == 4*2**20
        monkeypatch.setenv('DEVITOCOMP_STAGING_BYTES', 'much')
        with pytest.raises(StoreError, match="DEVITOCOMP_STAGING_BYTES is 'much'"):
            make(serialization=tmp_path).data[0] = 1

    def test_estimates(self, tmp_path):
        """What may be in memory counts, never the dense size."""
        grid = Grid(shape=(20, 20, 20))
        raw = 20**3*4
        g = Function(name='g', grid=grid)
        host = {}
        for layers in ('host', 'disk', 'disk-host'):
            f = make(grid=grid, save=1000, layers=layers)
            host[layers] = Operator(Eq(f, g)).estimate_memory()['host']
            assert not f._store.is_open
        assert host['host'] >= 1000*raw
        assert raw < host['disk'] < 4*raw
        # All of them fit into the memory for staging
        assert 1000*raw < host['disk-host'] < 1.1*1000*raw

    def test_opening_many(self, tmp_path):
        path, data = closed(tmp_path, save=10_000)
        start = time.perf_counter()
        f = reopen(path, save=10_000)
        f._store.open(write=False)
        seconds = time.perf_counter() - start
        print(f'opening a store of 10000 snapshots: {seconds:.3f} s')
        assert seconds < 2
        assert np.array_equal(f.data[9_999], data[9_999])


# A reader of stores that knows docs/store-format.md only

def checksum(seed, data):
    mask = 2**64 - 1

    def absorb(state, word):
        product = (state ^ word) * 0xd2bc035513b16ec7 & mask
        return (product << 29 | product >> 35) & mask

    state = absorb(seed, len(data))
    lanes = [absorb(state, i + 1) for i in range(4)]
    data = data + bytes(-len(data) % 32)
    for block in struct.iter_unpack('=4Q', data):
        lanes = [absorb(lane, word) for lane, word in zip(lanes, block, strict=True)]
    for i in lanes:
        state = absorb(state, i)
    state = absorb(state, state >> 32)
    return state ^ state >> 31


def words(*numbers):
    return struct.pack(f'={len(numbers)}Q', *numbers)


def read_header(content, magic):
    found, order, version, identity, *_, seal = struct.unpack('=8sIIQ4QQ', content[:64])
    assert (found, order, version) == (magic, 0x01020304, 1)
    assert seal == (checksum(0, content[:56]) or 1)
    return identity


def read_pair(content, identity, position, snapshot, epoch):
    best = None
    for start in (position, position + 64):
        sequence, which, of, *rest, seal = struct.unpack('=QqQ4QQ',
                                                         content[start:start + 64])
        if seal:
            assert seal == (checksum(identity, content[start:start + 56]) or 1)
            assert which == snapshot
            if epoch in (None, of) and (best is None or sequence > best[0]):
                best = (sequence, of, *rest)
    return best


def read_store(folder):
    """All contents of a store: {snapshot: (payload, sidecar)}."""
    index = Path(folder, 'snapshots.index').read_bytes()
    data = Path(folder, 'snapshots.data').read_bytes()
    manifest = json.loads(Path(folder, 'manifest.json').read_text())
    identity = int(manifest['store_id'], 16)
    assert read_header(index, b'DVTCOMPI') == read_header(data, b'DVTCOMPD') == identity
    n, dtype, rank = struct.unpack('=qII', index[64:80])
    dims = struct.unpack('=8q', index[80:144])
    assert len(index) == 256 + 128*(n + 1) and n == manifest['description']['save']
    assert list(dims[:rank]) == manifest['description']['shape'] and dtype == 1
    assert struct.unpack('=Q', index[248:256])[0] == checksum(identity, index[:248])

    _, epoch, described, version, nside, _ = read_pair(index, identity, 256, -1, None)
    assert described == 1 and version == manifest['provider']['payload_version']
    contents, latest, digest = {}, (0, 0), 0
    for k in range(n):
        record = read_pair(index, identity, 384 + 128*k, k, epoch)
        if record is None:
            continue
        sequence, _, offset, nbytes, found, after = record
        assert offset % 64 == 0
        payload, sidecar = data[offset:offset + nbytes], \
            data[offset + nbytes:offset + nbytes + nside]
        seed = checksum(identity, words(k, sequence, epoch, nbytes, nside))
        assert found == checksum(checksum(seed, payload), sidecar)
        digest = digest + checksum(identity, words(k, sequence)) & 2**64 - 1
        latest = max(latest, (sequence, after))
        contents[k] = (payload, sidecar)
    assert latest[1] == digest
    return contents


def test_format(tmp_path):
    """The document describes what is written."""
    f = make(serialization=tmp_path, save=5)
    f.data[:] = 9
    f.clear()
    data = values(f)
    for i in (3, 0, 4, 3):
        f.data[i] = data[i]
    contents = read_store(os.path.dirname(f._fnames[0]))
    assert sorted(contents) == [0, 3, 4]
    for k, (payload, sidecar) in contents.items():
        # The dummy copies
        assert payload == data[k].tobytes() and len(sidecar) == 8


@pytest.mark.parallel
def test_mpi(tmp_path):
    layers = 'disk-host'
    out = mpirun(2, 'mpi_disk.py', 'save', str(tmp_path), layers)
    path = out.split('saved to ')[1].split()[0]
    assert sorted(os.listdir(path)) == ['rank00000', 'rank00001']
    assert 'read again' in mpirun(2, 'mpi_disk.py', 'read', path, layers)
    for ranks in (1, 4):
        out = mpirun(ranks, 'mpi_disk.py', 'refused', path, layers)
        assert f'mpi.ranks is 2 in the store and {ranks} here' in out
    out = mpirun(2, 'mpi_disk.py', 'topology', path, layers)
    assert 'mpi.topology is [2, 1] in the store and [1, 2] here' in out


@pytest.mark.parallel
def test_mpi_failures(tmp_path):
    """On one rank, in opening and in writing: on all, the same."""
    out = mpirun(2, 'mpi_disk.py', 'failures', str(tmp_path), 'disk')
    assert out.count('the same exception on all ranks') == 5
