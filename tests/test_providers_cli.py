"""The bundled providers: found, built into the cache, and usable."""
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from devitocomp_plugin import cli, paths
from devitocomp_plugin.provider import current_provider
from devitocomp_plugin.providers import bundled_providers

ROOT = Path(__file__).resolve().parent.parent

# Without a MISSING, there is nothing to install
MAKEFILE = '''
probe:
\t@test -z '$(MISSING)' || { echo 'libtoy is missing. $(MISSING)' >&2; exit 1; }
install: $(BUILD)/toy.so
\tmkdir -p $(PREFIX)/include $(PREFIX)/lib
\tcp $(INCLUDE)/devitocomp.h $(PREFIX)/include
\tcp $(BUILD)/toy.so $(PREFIX)/lib/libdevitocomp.so
$(BUILD)/toy.so: toy.c
\tmkdir -p $(BUILD)
\t$(CC) $(CFLAGS) -fPIC -shared -I$(INCLUDE) -o $@ $<
'''

DESCRIPTION = '''
[provider]
summary = a toy
execution = host
dtypes = float32
ranks = 2, 3
variants = host other
'''


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / 'cache'
    monkeypatch.setenv('DEVITOCOMP_CACHE', str(folder))
    return folder


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A new provider, which is nothing but a folder. The folder."""
    bundled = tmp_path / 'bundled'
    shutil.copytree(paths.include_dir(), bundled / 'include')
    folder = bundled / 'providers' / 'toy'
    folder.mkdir(parents=True)
    source = (paths.provider_sources('dummy') / 'dummy.c').read_text()
    assert source.count('return "dummy";') == 1
    (folder / 'toy.c').write_text(source.replace('return "dummy";', 'return "toy";'))
    (folder / 'Makefile').write_text(MAKEFILE)
    (folder / 'provider.ini').write_text(DESCRIPTION)
    monkeypatch.setattr(paths, 'BUNDLED', bundled)
    for i in ('CFLAGS', 'MISSING'):
        monkeypatch.delenv(i, raising=False)
    return folder


def output(capsys, *args):
    """What a command prints that must succeed, and print nothing else."""
    status = cli.main([str(i) for i in args])
    out, err = capsys.readouterr()
    assert status == 0 and not err, err
    return out


def error(capsys, *args):
    """What a command says that must fail: one line."""
    status = cli.main([str(i) for i in args])
    out, err = capsys.readouterr()
    assert status == 1 and not out and err.count('\n') == 1
    return err


def root_of(capsys, *args):
    out = output(capsys, 'root', *args)
    assert out.count('\n') == 1
    return Path(out.rstrip('\n'))


@pytest.mark.parametrize('name', bundled_providers())
def test_root(name, capsys, use_root, cache):
    provider = bundled_providers()[name]
    missing = provider.missing()
    if missing:
        assert missing in error(capsys, 'root', name)
        assert not os.environ.get('CI'), missing
        pytest.skip(missing)
    root = root_of(capsys, name)
    assert cache in root.parents
    assert sorted(str(i.relative_to(root)) for i in root.rglob('*') if i.is_file()) == \
        ['include/devitocomp.h', 'lib/libdevitocomp.so']
    use_root(root)
    assert current_provider().name == name
    claims = current_provider().claims
    # What is said about it before it is built
    for said, found in ((provider.execution, claims.execution_kinds),
                        (provider.dtypes, claims.dtypes), (provider.ranks, claims.ranks)):
        assert sorted(said.split(', ')) == sorted(str(i) for i in found)


def test_all_folders_are_found():
    """Of the sources too, should the installation have left one out."""
    folders = {i.parent.name for i in (ROOT / 'providers').glob('*/Makefile')}
    assert {'dummy', 'zfp'} <= folders == set(bundled_providers())


def test_providers(capsys, monkeypatch, toy):
    out = output(capsys, 'providers')
    assert 'a toy' in out and 'dtypes: float32' in out and 'ranks: 2, 3' in out
    assert out.count('can be built') == 2  # The variants
    root = root_of(capsys, 'toy')
    out = output(capsys, 'providers')
    assert f'variant host: built in {root}' in ' '.join(out.split())
    assert 'variant other: can be built' in out
    # As it says itself
    assert 'uses-sidecar' in out and 'sidecar of 8 bytes' in out and 'lossless' in out
    monkeypatch.setenv('MISSING', 'Install it: Debian: libtoy-dev')
    (toy / 'toy.c').write_text(f'{(toy / "toy.c").read_text()}\n')
    out = ' '.join(output(capsys, 'providers').split())
    assert 'variant host: libtoy is missing. Install it: Debian: libtoy-dev' in out


class TestRoot:

    def test_built_once(self, capsys, toy, use_root):
        root = root_of(capsys, 'toy')
        library = root / 'lib' / 'libdevitocomp.so'
        built = library.stat().st_mtime_ns
        assert root_of(capsys, 'toy') == root
        assert library.stat().st_mtime_ns == built
        use_root(root)
        assert current_provider().name == 'toy'

    def test_for_each_content_and_compiler(self, capsys, monkeypatch, toy):
        roots = [root_of(capsys, 'toy')]
        roots.append(root_of(capsys, 'toy', '--variant', 'other'))
        monkeypatch.setenv('CFLAGS', '-O1')
        roots.append(root_of(capsys, 'toy'))
        monkeypatch.delenv('CFLAGS')
        source = (toy / 'toy.c').read_text()
        (toy / 'toy.c').write_text(source.replace('"1.0.0"', '"1.0.1"'))
        roots.append(root_of(capsys, 'toy'))
        shared = toy.parent / 'common'
        shared.mkdir()
        (shared / 'shared.h').touch()
        roots.append(root_of(capsys, 'toy'))
        assert len(set(roots)) == 5
        (toy / 'toy.c').write_text(source)
        shutil.rmtree(shared)
        assert root_of(capsys, 'toy') == roots[0]

    def test_broken_is_rebuilt(self, capsys, toy):
        root = root_of(capsys, 'toy')
        library = root / 'lib' / 'libdevitocomp.so'
        library.unlink()
        library.write_text('not a library')
        assert root_of(capsys, 'toy') == root
        assert library.read_bytes().startswith(b'\x7fELF')

    def test_missing(self, capsys, monkeypatch, toy):
        monkeypatch.setenv('MISSING', 'Install it: Debian: libtoy-dev; conda: toy')
        assert 'libtoy is missing. Install it: Debian: libtoy-dev; conda: toy' in \
            error(capsys, 'root', 'toy')

    @pytest.mark.parametrize('tool, says', [
        ('make', 'make is missing.*Debian, Ubuntu: make; conda: make.*pip'),
        ('cc', 'C compiler is missing.*Debian, Ubuntu: gcc.*conda: c-compiler.*pip'),
    ])
    def test_no_tools(self, tool, says, capsys, monkeypatch, tmp_path, toy):
        folder = tmp_path / 'bin'
        folder.mkdir()
        if tool != 'make':
            (folder / 'make').symlink_to(shutil.which('make'))
        monkeypatch.delenv('CC', raising=False)
        with monkeypatch.context() as m:
            m.setenv('PATH', str(folder))
            assert re.search(says, error(capsys, 'root', 'toy'))
        root = root_of(capsys, 'toy')
        # What is there is there, as on the nodes of a cluster that have no compiler
        monkeypatch.setenv('PATH', str(folder))
        assert root_of(capsys, 'toy') == root
        (toy / 'toy.c').write_text(f'{(toy / "toy.c").read_text()}\n')
        assert re.search(says, error(capsys, 'root', 'toy'))

    def test_compilation_fails(self, capsys, toy):
        (toy / 'toy.c').write_text('#error "no such luck"\n')
        says = error(capsys, 'root', 'toy')
        assert 'no such luck' in says
        log = Path(re.search(r'\(all of it: (.*)\)', says).group(1))
        assert 'toy.c' in log.read_text()

    def test_unknown(self, capsys, toy):
        assert 'no bundled provider nonsense, only: toy' in \
            error(capsys, 'root', 'nonsense')
        assert 'no variant nonsense, only: host, other' in \
            error(capsys, 'root', 'toy', '--variant', 'nonsense')


@pytest.mark.parametrize('packages', [r'libzfp-dev', r'conda: zfp', r'pip: '])
def test_zfp_without_libzfp(packages, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('ZFP_ROOT', str(tmp_path))
    assert re.search(packages, error(capsys, 'root', 'zfp'))


@pytest.mark.slow
def test_from_a_wheel(tmp_path):
    """Installed for good, nothing of the checkout is needed."""
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w',
                    str(tmp_path), str(ROOT)], check=True)
    wheel, = tmp_path.glob('*.whl')
    with zipfile.ZipFile(wheel) as f:
        f.extractall(tmp_path / 'site')
    done = subprocess.run([sys.executable, '-m', 'devitocomp_plugin', 'root', 'zfp'],
                          cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, 'PYTHONPATH': str(tmp_path / 'site')})
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip(), 'lib', 'libdevitocomp.so').is_file()
