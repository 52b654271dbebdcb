"""The wrapper that runs the acceptance suites in a container, with a pretended engine."""
import os
import subprocess
from pathlib import Path

import pytest

from devitocomp_plugin import paths

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / 'docs/container/run'

ENGINE = '''#!/bin/sh
for i; do echo "$i"; done > "$(dirname "$0")/$1"
[ "$1" != "${FAIL:-}" ]
'''


@pytest.fixture
def run(tmp_path):
    """A function that calls the wrapper: its outcome, and arguments of build and run."""
    engine = tmp_path / 'podman'
    engine.write_text(ENGINE)
    engine.chmod(0o755)

    def call(*args, **variables):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith('DEVITOCOMP_')}
        environment.update(PATH=f'{tmp_path}:{os.environ["PATH"]}', **variables)
        done = subprocess.run([str(RUN), *args], capture_output=True, text=True,
                              env=environment, cwd=tmp_path)
        recorded = []
        for name in ('build', 'run'):
            path = tmp_path / name
            recorded.append(path.read_text().splitlines() if path.exists() else None)
        return done, *recorded
    return call


def test_arguments(run):
    root = str(paths.dummy_root())
    done, build, started = run(DEVITOCOMP_ROOT=root)
    assert done.returncode == 0, done.stderr
    assert build == ['build', '-t', 'devitocomp-suites', '--build-arg', 'PACKAGES=', '-f',
                     str(ROOT / 'docs/container/Containerfile'), str(ROOT)]
    assert started == ['run', '--rm', '-v', f'{root}:{root}:ro', '-e',
                       f'DEVITOCOMP_ROOT={root}', 'devitocomp-suites']


def test_all_arguments(run):
    root = str(paths.dummy_root())
    done, build, started = run(
        'devitocomp', 'validate', '--rtol', '0.1', DEVITOCOMP_ROOT=root,
        DEVITOCOMP_RTOL='1e-3', PACKAGES='libzfp1 libgomp1', ENGINE_ARGS='--gpus all')
    assert done.returncode == 0, done.stderr
    assert 'PACKAGES=libzfp1 libgomp1' in build
    assert started[6:] == ['-e', 'DEVITOCOMP_RTOL=1e-3', '--gpus', 'all',
                           'devitocomp-suites', 'devitocomp', 'validate', '--rtol', '0.1']


def test_path_with_spaces(run, copy_of_dummy):
    root = copy_of_dummy.rename(copy_of_dummy.with_name('a provider'))
    _, _, started = run(DEVITOCOMP_ROOT=str(root))
    assert f'{root}:{root}:ro' in started


@pytest.mark.parametrize('step', ['build', 'run'])
def test_status(step, run):
    done, _, started = run(DEVITOCOMP_ROOT=str(paths.dummy_root()), FAIL=step)
    assert done.returncode != 0
    assert (started is None) == (step == 'build')


@pytest.mark.parametrize('root,says', [
    (None, 'set DEVITOCOMP_ROOT'), ('relative', 'absolute'), ('/a:b', 'colon'),
    ('/nonexistent', 'no include/devitocomp.h')
])
def test_refused(root, says, run):
    done, build, _ = run(**({'DEVITOCOMP_ROOT': root} if root else {}))
    assert done.returncode == 1 and says in done.stderr and build is None
    assert root is None or root in done.stderr


def test_containerfile():
    """It names scripts that there are, and that can be executed."""
    folder = ROOT / 'docs/container'
    text = (folder / 'Containerfile').read_text()
    for i in ('install', 'suites'):
        assert f'/opt/devitocomp_plugin/docs/container/{i}' in text
        assert os.access(folder / i, os.X_OK)
        subprocess.run(['sh', '-n', str(folder / i)], check=True)
