"""What tests have in common."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

if worker := os.environ.get('PYTEST_XDIST_WORKER'):
    # Before Devito looks: its cache of compiled code is not made for several processes
    # that compile the same at once
    tempfile.tempdir = os.path.join(tempfile.gettempdir(), worker)
    os.makedirs(tempfile.tempdir, exist_ok=True)
    os.environ['TMPDIR'] = tempfile.tempdir

from acceptance import rtol  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope='session')
def providers(tmp_path_factory):
    """
    A folder with the providers made for testing, each usable as a DEVITOCOMP_ROOT:
    lossy, strided, faulty, wrong_version, no_symbol, not_a_library, old_header.
    """
    build = tmp_path_factory.mktemp('providers')
    done = subprocess.run(['make', '-C', str(HERE / 'providers'), f'BUILD={build}'],
                          capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f'tests/providers cannot be built:\n{done.stdout}{done.stderr}')
    return build


@pytest.fixture(params=['devitocomp'])
def compression():
    """What the acceptance suites make functions with."""
    from devitocomp_plugin import DevitoComp
    return DevitoComp(error=rtol)


@pytest.fixture(scope='module')
def safe_math():
    """Let dense and compressed Operators, which are different code, round alike."""
    from devito import configuration
    previous = configuration['safe-math']
    configuration['safe-math'] = True
    yield
    configuration['safe-math'] = previous


@pytest.fixture
def use_root(monkeypatch):
    """A function that selects a provider until the end of the test; None: the bundled."""
    def use(root):
        if root is None:
            monkeypatch.delenv('DEVITOCOMP_ROOT', raising=False)
        else:
            monkeypatch.setenv('DEVITOCOMP_ROOT', os.fspath(root))
    return use


@pytest.fixture
def copy_of_dummy(tmp_path):
    """The root of a copy of the bundled provider, to be tampered with."""
    from devitocomp_plugin import paths
    return Path(shutil.copytree(paths.dummy_root(), tmp_path / 'copy_of_dummy'))
