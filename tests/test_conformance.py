"""
The conformance suite: good providers pass it, and each fault is found by the checks that
are meant to find it, and by no others.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from devitocomp_plugin import cli, paths
from devitocomp_plugin.conformance import suites
from devitocomp_plugin.conformance.checks import FAILED, NOT_APPLICABLE, PASSED
from devitocomp_plugin.conformance.groups import GROUPS
from devitocomp_plugin.conformance.groups.strides import layouts
from devitocomp_plugin.conformance.samples import small_shape
from devitocomp_plugin.conformance.validate import validate

ROOT = Path(__file__).resolve().parent.parent
PRETEND = ROOT / 'tests/providers/pretend_cuda'

WRONG_DATA = {
    'roundtrip.ramp', 'roundtrip.random', 'roundtrip.magnitudes', 'roundtrip.half_empty',
    'roundtrip.not_finite', 'wavefields.two', 'strides.strided', 'strides.exchanged',
    'determinism.decompression', 'durability.other_plan', 'durability.other_process'
}

# Fault of providers/broken/broken.c -> checks that have to find it
FAULTS = {
    'STILLBORN': {'loading.library'},
    'ANY_VERSION': {'creation.version'},
    'OVERFLOW': {'creation.overflow'},
    'DIES': {'options.odd'},
    'LEAKS': {'resources.plans', 'resources.used_plans'},
    'COARSE': WRONG_DATA,
    'NO_NAN': {'roundtrip.not_finite'},
    'NULL_PLAN': {'arguments.null_plan'},
    'OFF_BY_ONE': {'capacity.one_less', 'always.bounds', 'always.length'},
    'PICKY': {'arguments.aligned', 'corruption.fences'},
    'STATIC': {'concurrency.two_plans', 'concurrency.both_ways'},
    'STALE_BYTES': {'determinism.deterministic'},
    'COUNTS_THREADS': {'determinism.threads'},
    'REGISTRY': {'durability.other_process'},
    'IDLE_SIDECAR': {'sidecars.needed', 'corruption.flipped_sidecar',
                     'corruption.swapped'},
    'LAZY_HASH': {'corruption.flipped'},
    'OVERREADS': {'corruption.extended', 'corruption.fences'},
}
MORE_FAULTS = {
    'ANY_SIZE': {'creation.short'},
    'ANY_KIND': {'creation.kinds'},
    'RESERVED': {'creation.reserved'},
    'PLAN_LEFT': {'creation.no_plan'},
    'CLAIMS': {'limits.claims'},
    'SHARED_MESSAGE': {'creation.messages'},
    'DEAF': {'options.numbers'},
    'HANGS': {'options.odd'},
    'OVERRUNS': {'always.bounds'},
    'DESTROYS_NULL': {'creation.destroy_null'},
    'PRINTS': {'always.silence'},
    'FLUSHES': {'roundtrip.denormal', 'roundtrip.bits', 'wavefields.two'},
    'GREEDY': {'capacity.just_enough'},
    'FILLS_GAPS': {'strides.strided', 'strides.exchanged', 'always.bounds'},
    'SPOILS_INPUT': {'always.inputs'},
    'ROUNDS_UP': {'always.environment'},
    'ODD_STATUS': {'always.statuses'},
    'SILENT': {'always.messages'},
    'STORES_STRIDES': {'strides.exchanged'},
    'NEEDY': {'sidecars.not_needed'},
}


def make(folder, *args):
    done = subprocess.run(['make', '-s', '-C', str(folder), *args], capture_output=True,
                          text=True)
    assert done.returncode == 0, f'{done.stdout}{done.stderr}'


@pytest.fixture(scope='module')
def broken(tmp_path_factory):
    build = tmp_path_factory.mktemp('broken')
    make(ROOT / 'tests/providers/broken', f'BUILD={build}')
    return build


@pytest.fixture(scope='module')
def zfp(tmp_path_factory):
    folder = tmp_path_factory.mktemp('zfp')
    done = subprocess.run(
        ['make', '-s', '-C', str(ROOT / 'providers/zfp'), 'install',
         f'BUILD={folder / "build"}', f'PREFIX={folder / "root"}'],
        capture_output=True, text=True)
    if done.returncode != 0:
        if 'needs libzfp' in done.stderr:
            pytest.skip('needs libzfp')
        pytest.fail(done.stderr)
    return folder / 'root'


def results_of(root, **kwargs):
    return {i.name: i for i in validate(root, **kwargs)}


def failed(results):
    return {i.name for i in results.values() if i.outcome == FAILED}


def described(results):
    return '\n'.join(f'{i.name}: {i.details}' for i in results.values()
                     if i.outcome == FAILED)


class TestGoodProviders:

    def test_dummy(self):
        results = results_of(paths.dummy_root())
        assert not failed(results), described(results)
        assert results['strides.strided'].outcome == NOT_APPLICABLE
        assert 'STRIDED' in results['strides.strided'].details[0]

    @pytest.mark.parametrize('name', ['strided', 'lossy'])
    def test_others(self, name, providers):
        results = results_of(providers / name)
        assert not failed(results), described(results)

    def test_zfp(self, zfp):
        results = results_of(zfp)
        assert not failed(results), described(results)

    def test_unbroken(self, broken):
        """All checks but those for what it does not claim."""
        results = results_of(broken / 'NOTHING')
        assert not failed(results), described(results)
        assert {i.name for i in results.values() if i.outcome != PASSED} == {
            'creation.not_strided', 'options.comma', 'wavefields.one', 'wavefields.three',
            'arguments.no_sidecar', 'sidecars.not_needed', 'portability.kinds'} - {
                i for i in ('options.comma',) if results[i].outcome == PASSED}


@pytest.mark.parametrize('rank', range(1, 9))
def test_gaps(rank):
    """Tensors with gaps are those of a small array, whatever their rank."""
    shape = small_shape(rank)
    for name, strides in layouts(shape):
        last = sum((n - 1)*i for n, i in zip(shape, strides, strict=True))
        assert np.prod(shape) <= last + 1 < 5e6, name
        # No two elements are in the same place
        offsets = np.tensordot(strides, np.indices(shape), 1)
        assert len(np.unique(offsets)) == np.prod(shape), name


class TestFaults:

    @pytest.mark.parametrize('fault', [
        *FAULTS, *(pytest.param(i, marks=pytest.mark.slow) for i in MORE_FAULTS)])
    def test_found(self, fault, broken):
        results = results_of(broken / fault, time_limit=5.)
        assert failed(results) == {**FAULTS, **MORE_FAULTS}[fault], described(results)
        for i in failed(results):
            assert all(results[i].details)

    def test_all_faults_are_tried(self):
        source = (ROOT / 'tests/providers/broken/broken.c').read_text()
        enum = re.search(r'enum fault {(.*?)};', source, re.DOTALL).group(1)
        names = set(re.findall(r'^  ([A-Z_]+)', enum, re.MULTILINE))
        assert names == {'NOTHING', *FAULTS, *MORE_FAULTS}

    def test_details(self, broken):
        """A report says what was tried, what came out, and how a process ended."""
        results = results_of(broken / 'NULL_PLAN', groups=['arguments'])
        assert 'SIGSEGV' in results['arguments.null_plan'].details[0]
        assert results['arguments.null'].outcome == PASSED
        results = results_of(broken / 'DIES', groups=['options'])
        assert 'exit status 0' in results['options.odd'].details[0]
        results = results_of(broken / 'HANGS', groups=['options'], time_limit=0.5)
        assert 'did not end within 0.5 s' in results['options.odd'].details[0]
        results = results_of(broken / 'OVERRUNS', groups=['capacity'])
        assert '8 bytes after' in results['always.bounds'].details[0]
        assert 'offset +0' in results['always.bounds'].details[0]

    @pytest.mark.parametrize('name,says', [
        ('no_symbol', 'devitocomp_decompress'), ('wrong_version', 'version 999'),
        ('not_a_library', 'libdevitocomp.so')
    ])
    def test_unusable(self, name, says, providers):
        results = results_of(providers / name)
        assert list(results) == ['loading.library']
        assert says in results['loading.library'].details[0]

    def test_old_header(self, providers):
        results = results_of(providers / 'old_header', groups=['loading'])
        assert failed(results) == {'loading.header'}
        assert 'version 0' in results['loading.header'].details[0]


def no_host(kind):
    return 'it is away'


@pytest.fixture(scope='module')
def pretend_cuda(tmp_path_factory):
    """A folder with a libcudart.so that needs no device."""
    folder = tmp_path_factory.mktemp('cuda')
    compile_library(folder / 'libcudart.so', PRETEND / 'cudart.c', '-std=c11', '-pthread')
    return folder


def compile_library(target, source, *args):
    done = subprocess.run(
        ['cc', '-O1', '-Wall', '-Wextra', '-Werror', '-fPIC', '-shared', '-o',
         str(target), str(source), f'-Wl,-soname,{target.name}', f'-I{PRETEND}',
         f'-I{ROOT / "include"}', *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class TestKinds:
    """Devices, with the CUDA build of the dummy provider and no device at all."""

    def validate(self, root, cuda, *groups, devices=1):
        done = subprocess.run(
            [sys.executable, '-m', 'devitocomp_plugin', 'validate', str(root),
             *(f'--group={i}' for i in groups)], capture_output=True, text=True,
            env={**os.environ, 'LD_LIBRARY_PATH': str(cuda),
                 'PRETEND_CUDA_DEVICES': str(devices)})
        assert not done.stderr
        return done

    def root(self, folder, cuda, source):
        root = folder / 'root'
        shutil.copytree(paths.dummy_root(), root)
        (root / 'lib/libdevitocomp.so').unlink()
        compile_library(root / 'lib/libdevitocomp.so', source, '-std=c99', '-DDUMMY_CUDA',
                        '-fvisibility=hidden', f'-L{cuda}', '-lcudart')
        return root

    def test_device(self, pretend_cuda, tmp_path):
        root = self.root(tmp_path, pretend_cuda, ROOT / 'providers/dummy/dummy.c')
        done = self.validate(root, pretend_cuda, 'arguments', 'portability', 'sidecars')
        assert done.returncode == 0, done.stdout
        lines = done.stdout.splitlines()
        for i in ('portability', 'cuda/portability'):
            assert lines[lines.index(i) + 1].startswith('  passed')
        assert 'cuda/arguments' in lines and 'cuda/sidecars' in lines

        done = self.validate(root, pretend_cuda, 'portability', devices=0)
        assert done.returncode == 0, done.stdout
        assert '  not checked     works on execution kind cuda' in done.stdout
        assert done.stdout.splitlines()[-1].endswith(' 2 not checked')

    def test_wrong_stream(self, pretend_cuda, tmp_path):
        source = tmp_path / 'dummy.c'
        text = (ROOT / 'providers/dummy/dummy.c').read_text()
        assert text.count('(cudaStream_t)stream);') == 1
        source.write_text(text.replace('(cudaStream_t)stream);',
                                       '(cudaStream_t)(stream ? NULL : stream));'))
        root = self.root(tmp_path, pretend_cuda, source)
        done = self.validate(root, pretend_cuda, 'roundtrip')
        assert done.returncode == 1
        failed = [i for i in done.stdout.splitlines() if ' FAILED  cuda/' in i]
        assert len(failed) == 12 and ' FAILED  roundtrip' not in done.stdout

    def test_nothing_to_check(self, broken, monkeypatch):
        from devitocomp_plugin.conformance import validate as module
        monkeypatch.setattr(module, 'unavailable', no_host)
        results = results_of(broken / 'NOTHING')
        assert failed(results) == {'kinds.none'}


class TestDocumentation:

    page = ROOT / 'docs/writing-a-provider.md'
    source = ROOT / 'tests/providers/documented/provider.c'

    def blocks(self, language):
        return re.findall(rf'^```{language}\n(.*?)^```$', self.page.read_text(),
                          re.MULTILINE | re.DOTALL)

    def test_code(self):
        """The code of the page is the file."""
        assert '\n'.join(self.blocks('c')) == self.source.read_text()

    def test_provider(self, tmp_path):
        """Built with the commands of the page, and no others, it passes all checks."""
        shutil.copy(self.source, tmp_path)
        shutil.copy(ROOT / 'include/devitocomp.h', tmp_path)
        commands, = self.blocks('sh')
        done = subprocess.run(['sh', '-e', '-c', commands], cwd=tmp_path,
                              capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        results = results_of(tmp_path / 'my-provider')
        assert not failed(results), described(results)


class TestCommand:

    def run(self, *args):
        return subprocess.run([sys.executable, '-m', 'devitocomp_plugin', 'validate',
                               *map(str, args)], capture_output=True, text=True)

    def test_passes(self, broken):
        done = self.run(broken / 'NOTHING', '--group', 'loading', '--group', 'creation')
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert lines[0] == f'validating {broken / "NOTHING"}'
        assert re.fullmatch(r'\d+ checks: \d+ passed, 1 not applicable', lines[-1])
        assert '  passed          creates plans of every dtype and rank that it claims' \
            in lines

    def test_fails(self, broken):
        done = self.run(broken / 'ANY_VERSION', '--group', 'creation')
        assert done.returncode == 1
        assert ', 1 FAILED,' in done.stdout
        assert 'creation.version' in done.stdout.splitlines()[-1]

    @pytest.mark.parametrize('args,says', [
        (['--group', 'nonsense'], 'nonsense'), (['--rtol', '-1'], '-1'),
        (['--suites', '/nonexistent'], '/nonexistent'), (['/nonexistent'], '/nonexistent')
    ])
    def test_refused(self, args, says, capsys):
        assert cli.main(['validate', *args]) == 1
        out, err = capsys.readouterr()
        assert says in err and err.count('\n') == 1 and not out

    def test_every_group_has_checks(self):
        from devitocomp_plugin.conformance.checks import checks_of
        for name, module in GROUPS.items():
            assert checks_of(module), name


@pytest.fixture
def suite_folder(tmp_path):
    """Stand-ins for the acceptance suites, which tell what they are run with."""
    for i in suites.SUITES:
        (tmp_path / i).write_text(
            'import os, pytest\n'
            '@pytest.mark.parametrize("kind", ["devitocomp", "other"])\n'
            'def test(kind):\n'
            '    assert kind == "devitocomp"\n'
            '    assert os.environ.get("DEVITOCOMP_RTOL") in (None, "0", "0.001")\n'
            '    assert os.path.isdir(os.environ["DEVITOCOMP_ROOT"])\n')
    return tmp_path


class TestSuites:

    def test_tolerances(self, providers, broken):
        assert suites.tolerances(paths.dummy_root()) == [None]
        assert suites.tolerances(providers / 'strided') == [None]
        assert suites.tolerances(providers / 'lossy') == ['0', '0.001']

    def test_of_the_checkout(self):
        assert suites.find_suites() == ROOT / 'tests'

    def test_run(self, suite_folder, providers):
        results = list(suites.run_suites(providers / 'lossy', suite_folder, ['0.001']))
        assert [i.outcome for i in results] == [PASSED]*2
        assert '1 passed, 1 deselected' in results[0].details[0]
        assert [i.title for i in results] == [f'passes {i} with DEVITOCOMP_RTOL=0.001'
                                              for i in suites.SUITES]

    def test_failure(self, suite_folder, providers):
        result, *_ = suites.run_suites(providers / 'lossy', suite_folder, ['0.5'])
        assert result.outcome == FAILED
        assert '1 failed' in result.details[0] and 'test[devitocomp]' in result.details[1]

    def test_missing(self, suite_folder, providers, tmp_path):
        (suite_folder / suites.SUITES[1]).unlink()
        first, second = suites.run_suites(providers / 'strided', suite_folder, [None])
        assert (first.outcome, second.outcome) == (PASSED, FAILED)
        assert second.details[0].startswith('not run') and str(tmp_path) in \
            second.details[0]
        results = list(suites.run_suites(providers / 'strided', None, [None]))
        assert [i.outcome for i in results] == [FAILED]*2
        assert '--no-suites' in results[0].details[0]

    def test_whole_command(self, suite_folder, copy_of_dummy):
        """With checks and suites of a provider that cannot even be loaded."""
        shutil.copy(__file__, copy_of_dummy / 'lib/libdevitocomp.so')
        done = subprocess.run(
            [sys.executable, '-m', 'devitocomp_plugin', 'validate', str(copy_of_dummy),
             '--suites', str(suite_folder)], capture_output=True, text=True)
        assert done.returncode == 1
        assert 'loading.library' in done.stdout and 'suites.tolerance' in done.stdout
