"""The examples, as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / 'examples'


def run(name, *args, **env):
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *map(str, args)],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(out):
    """Stored bytes (MB), ratio, and difference of the gradient, of each case."""
    found = re.findall(r'^(dense|error [^ ]*, [a-z-]+) +(?:[\d.]+ +){3}[-\d.]+ +'
                       r'([\d.]+) +([\d.]+) +[\d.]+ +([\d.e+-]+)$', out, re.MULTILINE)
    return {name: tuple(map(float, values)) for name, *values in found}


def test_gradient():
    out = run('gradient.py', '--shape', 61, 51, '--steps', 120, '--layers', 'host',
              '--layers', 'disk', '--layers', 'disk-host')
    found = rows(out)
    assert set(found) == {'dense', 'error 0.001, host', 'error 0.001, disk',
                          'error 0.001, disk-host'}
    for stored, ratio, error in found.values():
        assert stored > 0 and ratio == 1 and error == 0
    assert 'identical in all cases, to the bit: yes' in out


def test_gradient_lossy(providers):
    found = rows(run('gradient.py', '--ndim', 3, '--shape', 24, 24, 24, '--steps', 60,
                     '--error', '1e-2', '--error', '1e-4',
                     DEVITOCOMP_ROOT=str(providers / 'lossy')))
    coarse, fine = found['error 0.01, host'], found['error 0.0001, host']
    assert 0 < fine[2] < 1e-3 and fine[2] < coarse[2] < 0.05


def test_gradient_of_a_model(tmp_path):
    vp = np.linspace(1.5, 3, 40, dtype=np.float32)*np.ones((50, 1), np.float32)
    vp.tofile(tmp_path / 'vp.bin')
    args = ['--model', tmp_path / 'vp.bin', '--spacing', '7.5', '--steps', '60']
    out = run('gradient.py', *args, '--shape', 50, 40)
    assert '130 x 120 points' in out and 'spacing 7.5 m' in out
    with pytest.raises(AssertionError, match='holds 2000 float32 numbers.*not 50 x 50'):
        run('gradient.py', *args, '--shape', 50, 50)


def test_readme():
    """The example of the README says what it did."""
    readme = (EXAMPLES.parent / 'README.md').read_text()
    code = re.search(r'```python\n(.*?)```', readme, re.DOTALL).group(1)
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0, done.stderr
    assert '499 snapshots' in done.stdout


def test_shots():
    """A worker that is killed in mid-shot costs time, and nothing else."""
    if not os.environ.get('CI'):
        pytest.importorskip('distributed')
    out = run('shots_dask.py', '--shape', 61, 51, '--steps', 120, '--shots', 3, '--kill')
    assert 'A worker was killed in mid-shot: yes' in out
    assert 'Left behind in the scratch directory: nothing' in out
    assert 'identical, to the bit' in out
