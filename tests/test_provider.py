"""Finding, checking, calling and linking with providers."""
import ctypes as ct
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from devito.exceptions import DevitoError, ExecutionError

from devitocomp_plugin import abi, cli, linking, paths
from devitocomp_plugin.exceptions import (
    CompressionError,
    DevitoCompError,
    InstallationError,
    ProviderError,
    ProviderLoadError,
    ProviderNotFound,
    ProviderRefusal,
    ProviderSymbolError,
    ProviderVersionError,
)
from devitocomp_plugin.plan import Limits
from devitocomp_plugin.provider import current_provider

STRUCTS = {
    'devitocomp_execution_t': abi.Execution, 'devitocomp_tensor_t': abi.Tensor,
    'devitocomp_limits_t': abi.LimitsStruct, 'devitocomp_view_t': abi.View,
    'devitocomp_slot_t': abi.Slot, 'devitocomp_store_config_t': abi.Config,
    'devitocomp_snapshot_info_t': abi.Info, 'devitocomp_failure_t': abi.Failure,
    'devitocomp_usage_t': abi.Usage
}


def aligned_buffer(nbytes, alignment):
    """A zeroed byte array whose first byte is aligned."""
    raw = np.zeros(nbytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start:start + nbytes]


def constants():
    yield 'ABI_VERSION', abi.ABI_VERSION
    yield 'MAX_RANK', abi.MAX_RANK
    yield 'WILL_MODIFY', abi.WILL_MODIFY
    for i in abi.STATUSES:
        yield i, getattr(abi, i)
    for k, v in abi.DTYPES.items():
        yield str(v).upper(), k
    for k, v in abi.EXECUTION_KINDS.items():
        yield f'EXECUTION_{v.upper()}', k
    for k, v in abi.ERROR_KINDS.items():
        yield f'ERROR_{v.upper().replace("-", "_")}', k
    for k, v in abi.FLAGS.items():
        yield v.upper().replace('-', '_'), k


class TestABI:

    def test_layout(self, tmp_path):
        """The ctypes mirror against what the C compiler makes of the headers."""
        lines, expected = [], []
        for name, struct in STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f'{name} {ct.sizeof(struct)}')
            for field, _ in struct._fields_:
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, '
                             f'{field}), sizeof((({name} *)0)->{field}));')
                mirror = getattr(struct, field)
                expected.append(f'{name}.{field} {mirror.offset} {mirror.size}')
        for name, value in constants():
            lines.append(f'printf("{name} %lld\\n", (long long)DEVITOCOMP_{name});')
            expected.append(f'{name} {value}')
        source = tmp_path / 'layout.c'
        source.write_text('#include <stdio.h>\n#include "devitocomp_store.h"\n'
                          'int main(void) {\n' + '\n'.join(lines) + '\nreturn 0; }\n')
        program = tmp_path / 'layout'
        subprocess.run([*linking.c_compiler(), f'-I{paths.include_dir()}', str(source),
                        '-o', str(program)], check=True)
        found = subprocess.run([str(program)], check=True, capture_output=True, text=True)
        assert found.stdout.splitlines() == expected

    @pytest.mark.parametrize('header, functions', [
        ('devitocomp.h', abi.PROVIDER_FUNCTIONS),
        ('devitocomp_store.h', abi.STORE_FUNCTIONS)
    ])
    def test_functions(self, header, functions):
        """All functions that the headers declare, with that many arguments."""
        text = (paths.include_dir() / header).read_text()
        text = re.sub(r'/\*.*?\*/', '', text, flags=re.DOTALL)
        declared = re.findall(r'^(?!static)\w[\w \t*]*?\b(devitocomp_\w+)\(([^)]*)\);',
                              text, flags=re.MULTILINE)
        counts = {k: 0 if v.strip() == 'void' else v.count(',') + 1 for k, v in declared}
        assert counts == {k: len(v[1]) for k, v in functions.items()}

    def test_runtime_is_loaded_once(self):
        assert abi.runtime() is abi.runtime()

    @pytest.mark.parametrize('dtype', ['float32', 'float64', 'float16', 'int32', 'int64'])
    def test_dtype(self, dtype):
        assert abi.dtype_of(abi.dtype_code(dtype)) == np.dtype(dtype)

    def test_dtype_unknown(self):
        with pytest.raises(ValueError, match='complex64.*float32'):
            abi.dtype_code(np.complex64)
        with pytest.raises(ValueError, match='77'):
            abi.dtype_of(77)

    def test_tensor(self):
        assert abi.contiguous_strides((4, 3, 5)) == (15, 5, 1)
        assert abi.contiguous_strides((4,)) == (1,)
        tensor = abi.make_tensor('float32', (4, 3, 5))
        assert (tensor.dtype, tensor.rank, tensor.struct_size) == (1, 3, 144)
        assert tuple(tensor.dims) == (4, 3, 5, 0, 0, 0, 0, 0)
        assert tuple(tensor.strides)[:3] == (15, 5, 1)
        for shape in [(), (1,)*9, (0, 4)]:
            with pytest.raises(ValueError):
                abi.make_tensor('float32', shape)


class TestPaths:

    def test_cache_dir(self, tmp_path, monkeypatch):
        monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
        monkeypatch.setenv('HOME', str(tmp_path / 'home'))
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path / 'explicit'))
        assert paths.cache_dir() == tmp_path / 'explicit'
        monkeypatch.delenv('DEVITOCOMP_CACHE')
        assert paths.cache_dir() == tmp_path / 'xdg' / 'devitocomp'
        monkeypatch.delenv('XDG_CACHE_HOME')
        assert paths.cache_dir() == tmp_path / 'home' / '.cache' / 'devitocomp'
        assert paths.cache_dir().is_dir()

    def test_cache_dir_not_writable(self, tmp_path, monkeypatch):
        (tmp_path / 'file').touch()
        monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path / 'file' / 'cache'))
        path = paths.cache_dir()
        assert path == tmp_path / f'devitocomp-{os.getuid()}'
        assert path.stat().st_mode & 0o777 == 0o700

    def test_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(paths, 'BUNDLED', tmp_path)
        with pytest.raises(InstallationError, match='pip install'):
            paths.runtime_library()


class TestExceptions:

    def test_hierarchy(self):
        assert issubclass(DevitoCompError, DevitoError)
        assert issubclass(CompressionError, ExecutionError)
        assert issubclass(ProviderNotFound, FileNotFoundError)
        assert issubclass(ProviderRefusal, (ProviderError, ValueError))

    def test_compression_error(self):
        error = CompressionError('hash differs', action='decompress', function='usave',
                                 snapshot=3, provider='zfp 1.0.1', status=5)
        assert str(error) == ('could not decompress snapshot 3 of `usave` with provider '
                              'zfp 1.0.1: CORRUPT_PAYLOAD (5): hash differs')
        other = pickle.loads(pickle.dumps(error))
        assert str(other) == str(error) and vars(other) == vars(error)
        assert CompressionError(status=99).status_name == 'PROVIDER_ERROR'
        assert str(CompressionError('no memory', action='create a plan')) == \
            'could not create a plan: no memory'


class TestDiscovery:

    def test_bundled(self, use_root):
        use_root(None)
        provider = current_provider()
        assert provider.root == paths.dummy_root()
        assert provider.library.is_file() and provider.include_dir.is_dir()
        assert provider.supports('host') and not provider.supports('nonsense')
        assert np.dtype('float32') in provider.claims.dtypes
        assert {2, 3} <= provider.claims.ranks
        assert current_provider() is provider
        use_root('')
        assert current_provider() is provider

    def test_environment_is_read_each_time(self, use_root, providers):
        use_root(None)
        first = current_provider()
        use_root(providers / 'lossy')
        second = current_provider()
        use_root(None)
        assert current_provider() is first
        assert first.key != second.key and first.name != second.name

    def test_relative_and_linked_root(self, use_root, copy_of_dummy, monkeypatch):
        use_root(copy_of_dummy)
        provider = current_provider()
        link = copy_of_dummy.parent / 'current'
        link.symlink_to(copy_of_dummy)
        use_root(link)
        assert current_provider() is provider
        monkeypatch.chdir(copy_of_dummy.parent)
        use_root('copy_of_dummy')
        assert current_provider() is provider

    @pytest.mark.parametrize('remove, error', [
        ('', ProviderNotFound),
        ('include/devitocomp.h', ProviderNotFound),
        ('lib/libdevitocomp.so', ProviderNotFound),
    ])
    def test_missing(self, remove, error, use_root, copy_of_dummy):
        path = copy_of_dummy / remove
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        use_root(copy_of_dummy)
        with pytest.raises(error, match=f'{re.escape(str(path))}.*DEVITOCOMP_ROOT'):
            current_provider()

    @pytest.mark.parametrize('text, says', [
        ('#define DEVITOCOMP_ABI_VERSION 99\n', 'version 99.*version 1.*Update'),
        (' # define DEVITOCOMP_ABI_VERSION 0x0u\n', 'version 0.*version 1.*again'),
        ('#define SOMETHING_ELSE 1\n', 'no DEVITOCOMP_ABI_VERSION.*version 1'),
    ])
    def test_header_version(self, text, says, use_root, copy_of_dummy):
        header = copy_of_dummy / 'include' / 'devitocomp.h'
        header.write_text(text)
        use_root(copy_of_dummy)
        says = f'{re.escape(str(header))}.*{says}'
        with pytest.raises(ProviderVersionError, match=says):
            current_provider()

    @pytest.mark.parametrize('value', ['1', '1u', '(1)', 'UINT32_C(1)', '0x1 /* one */'])
    def test_header_version_spelling(self, value, use_root, copy_of_dummy):
        header = copy_of_dummy / 'include' / 'devitocomp.h'
        header.write_text(f'#define DEVITOCOMP_ABI_VERSION {value}\n')
        use_root(copy_of_dummy)
        current_provider()

    @pytest.mark.parametrize('name, error, says', [
        ('old_header', ProviderVersionError, 'devitocomp.h'),
        ('wrong_version', ProviderVersionError, 'libdevitocomp.so implements version'),
        ('no_symbol', ProviderSymbolError, 'does not export devitocomp_'),
        ('not_a_library', ProviderLoadError, 'cannot be loaded'),
    ])
    def test_unusable(self, name, error, says, use_root, providers):
        use_root(providers / name)
        for _ in range(2):
            with pytest.raises(error, match=says) as e:
                current_provider()
            assert str(providers / name) in str(e.value)

    def test_error_is_not_remembered(self, use_root, copy_of_dummy):
        library = copy_of_dummy / 'lib' / 'libdevitocomp.so'
        library.rename(library.with_suffix('.away'))
        use_root(copy_of_dummy)
        with pytest.raises(ProviderNotFound):
            current_provider()
        library.with_suffix('.away').rename(library)
        current_provider()

    def test_rebuilt(self, use_root, providers, copy_of_dummy):
        """Another library at the same path is noticed, and the old one stays usable."""
        use_root(copy_of_dummy)
        old = current_provider()
        record = linking.link(old)
        new_library = copy_of_dummy / 'new.so'
        shutil.copy(providers / 'lossy' / 'lib' / 'libdevitocomp.so', new_library)
        os.replace(new_library, old.library)

        new = current_provider()
        assert new.name != old.name
        assert linking.link(new).token != record.token
        assert old.functions.devitocomp_provider_name().decode() == old.name
        with pytest.raises(ProviderLoadError, match='has changed'):
            linking.link(old)

    def test_touched(self, use_root, copy_of_dummy):
        use_root(copy_of_dummy)
        provider = current_provider()
        os.utime(provider.library)
        assert current_provider() is provider
        linking.link(provider)

    def test_overwritten_in_place(self, use_root, copy_of_dummy):
        use_root(copy_of_dummy)
        with open(current_provider().library, 'ab') as f:
            f.write(b'changed')
        with pytest.raises(ProviderLoadError, match='Start Python again'):
            current_provider()


def limits_struct(**kwargs):
    values = dict(struct_size=ct.sizeof(abi.LimitsStruct), error_kind=2, error_bound=1e-3,
                  max_compressed_bytes=100, payload_alignment=8, sidecar_bytes=8,
                  sidecar_alignment=8)
    return abi.LimitsStruct(**{**values, **kwargs})


class TestLimits:

    @pytest.mark.parametrize('values', [
        dict(payload_alignment=1, sidecar_alignment=4096),
        dict(max_compressed_bytes=2**62 - 1),
        dict(error_kind=1, error_bound=0),
        dict(sidecar_bytes=0),
    ])
    def test_accepted(self, values):
        limits = Limits.from_struct(limits_struct(**values), 'some 1.0', '0.001')
        for k, v in values.items():
            if k != 'error_kind':
                assert getattr(limits, k) == v
        assert limits.lossless == (values.get('error_kind') == 1)

    @pytest.mark.parametrize('values, kind, says', [
        (dict(payload_alignment=0), 'host', 'payload_alignment is 0.* 4096'),
        (dict(payload_alignment=3), 'host', 'payload_alignment is 3.* 4096'),
        (dict(payload_alignment=8192), 'host', 'payload_alignment is 8192.* 4096'),
        (dict(payload_alignment=512), 'cuda', 'payload_alignment is 512.* 256'),
        (dict(sidecar_alignment=0), 'host', 'sidecar_alignment is 0.* 4096'),
        (dict(sidecar_alignment=8192), 'cuda', 'sidecar_alignment is 8192.* 4096'),
        (dict(max_compressed_bytes=2**62), 'host', 'max_compressed_bytes.* 2.62'),
        (dict(sidecar_bytes=2**64 - 1), 'host', 'sidecar_bytes.* 2.62'),
        (dict(error_kind=0), 'host', 'kind: none'),
        (dict(error_kind=3), 'host', 'kind: absolute'),
        (dict(error_kind=17), 'host', 'error_kind is 17'),
        (dict(error_bound=2e-3), 'host', 'at most 0.001, it promises 0.002 only'),
        (dict(error_bound=-1), 'host', 'error_bound is -1'),
        (dict(error_bound=float('nan')), 'host', 'error_bound is nan'),
        (dict(error_bound=float('inf')), 'host', 'error_bound is inf'),
        (dict(error_kind=1, error_bound=0.5), 'host', 'error_bound is 0.5'),
    ])
    def test_refused(self, values, kind, says):
        with pytest.raises(ProviderRefusal, match=f'some 1.0.*{says}'):
            Limits.from_struct(limits_struct(**values), 'some 1.0', '0.001', kind)

    def test_provider_default_and_own_options(self):
        for options in (None, 'mode=fast'):
            assert Limits.from_struct(limits_struct(error_kind=0), 'some 1.0',
                                      options).error_kind == 'none'

    @pytest.mark.parametrize('fault', ['align0', 'align3', 'alignhuge', 'maxhuge'])
    def test_faulty_provider(self, fault, use_root, providers, monkeypatch):
        monkeypatch.setenv('DEVITOCOMP_FAULT', fault)
        use_root(providers / 'faulty')
        provider = current_provider()
        with pytest.raises(ProviderRefusal, match='is unusable here'):
            provider.check_tensor('float32', (8, 8, 8))


class TestPlan:

    @pytest.mark.parametrize('name', [None, 'lossy', 'strided'])
    @pytest.mark.parametrize('options', [None, '0.01'])
    def test_round_trip(self, name, options, use_root, providers):
        use_root(name and providers / name)
        rng = np.random.default_rng(7)
        data = rng.standard_normal((9, 10, 11)).astype(np.float32)
        provider = current_provider()
        with provider.plan(data.dtype, data.shape, options=options,
                           num_threads=2) as plan:
            limits = plan.limits
            payload = aligned_buffer(limits.max_compressed_bytes,
                                     limits.payload_alignment)
            sidecar = aligned_buffer(limits.sidecar_bytes, limits.sidecar_alignment)
            nbytes = plan.compress(data, payload, payload.size, sidecar)
            assert 0 < nbytes <= payload.size
            result = np.full_like(data, np.nan)
            plan.decompress(payload, nbytes, sidecar, result)
        if limits.lossless:
            assert np.array_equal(result, data)
        else:
            assert limits.error_kind == 'relative-max'
            assert np.abs(result - data).max() <= limits.error_bound*np.abs(data).max()

    def test_strided(self, use_root, providers):
        use_root(providers / 'strided')
        provider = current_provider()
        assert 'strided' in provider.claims.flags
        whole = np.arange(12*14*16, dtype=np.float32).reshape(12, 14, 16)
        data = whole[2:-2, 2:-2, 2:-2]
        strides = tuple(i // 4 for i in data.strides)
        with provider.plan(data.dtype, data.shape, strides=strides) as plan:
            limits = plan.limits
            payload = aligned_buffer(limits.max_compressed_bytes,
                                     limits.payload_alignment)
            sidecar = aligned_buffer(limits.sidecar_bytes, limits.sidecar_alignment)
            nbytes = plan.compress(data, payload, payload.size, sidecar)
            result = np.full_like(whole, -1)
            plan.decompress(payload, nbytes, sidecar, result[2:-2, 2:-2, 2:-2])
        bound = limits.error_bound*np.abs(data).max()
        assert np.abs(result[2:-2, 2:-2, 2:-2] - data).max() <= bound
        result[2:-2, 2:-2, 2:-2] = -1
        assert (result == -1).all()

    def test_errors(self, use_root):
        use_root(None)
        provider = current_provider()
        data = np.ones((8, 8), dtype=np.float32)
        with provider.plan(data.dtype, data.shape) as plan:
            payload = aligned_buffer(plan.limits.max_compressed_bytes, 64)
            sidecar = aligned_buffer(plan.limits.sidecar_bytes, 64)
            with pytest.raises(CompressionError) as e:
                plan.compress(data, payload, 3, sidecar)
            assert e.value.status == abi.BUFFER_TOO_SMALL
            assert e.value.status_name == 'BUFFER_TOO_SMALL'
            assert e.value.provider == str(provider) and e.value.message
            nbytes = plan.compress(data, payload, payload.size, sidecar)
            payload[:] += 1
            with pytest.raises(CompressionError, match='decompress.*CORRUPT_PAYLOAD'):
                plan.decompress(payload, nbytes, sidecar, data)
            for wrong in (data.astype(np.float64), data[:4], data.T[:, ::-1]):
                with pytest.raises(ValueError, match='the plan is for'):
                    plan.compress(wrong, payload, payload.size, sidecar)
        plan.close()
        with pytest.raises(ValueError, match='closed'):
            plan.compress(data, payload, payload.size, sidecar)

    @pytest.mark.parametrize('dtype, shape, options, says', [
        ('float64', (8, 8), None, 'dtype float64, only: float32'),
        ('float32', (8,), None, '1 dimensions, only with: 2, 3'),
        ('float32', (8, 8), 'nonsense', 'error nonsense: .*'),
    ])
    def test_refusal(self, dtype, shape, options, says, use_root):
        use_root(None)
        provider = current_provider()
        with pytest.raises(ProviderRefusal, match=f'{re.escape(str(provider))}.*{says}'):
            provider.check_tensor(dtype, shape, options)

    def test_check_tensor(self, use_root):
        use_root(None)
        limits = current_provider().check_tensor(np.float32, (8, 8), '0.1')
        assert limits.max_compressed_bytes >= 256 and limits.lossless


OBJECT = '''
#include "devitocomp_store.h"
const char *name(void) { return devitocomp_provider_name(); }
int failed(void) { return devitocomp_store_failed(0); }
'''

IN_ONE_PROCESS = '''
import ctypes, os, subprocess, sys
from devitocomp_plugin import linking
from devitocomp_plugin.provider import current_provider

preload, folder, *roots = sys.argv[1:]
libraries = []
for n, root in enumerate(roots):
    os.environ['DEVITOCOMP_ROOT'] = root
    record = linking.link(current_provider())
    target = os.path.join(folder, f'{record.key}.so')
    cmd = [*linking.c_compiler(), '-shared', '-fPIC', *record.compile_flags,
           os.path.join(folder, 'object.c'), '-o', target, *record.link_flags]
    subprocess.run(cmd, check=True)
    if preload == 'all-compiled-first':
        libraries.append(target)
    else:
        libraries.append(ctypes.CDLL(target))
libraries = [ctypes.CDLL(i) if isinstance(i, str) else i for i in libraries]
for _ in range(2):
    for i in libraries:
        i.name.restype = ctypes.c_char_p
        print(i.name().decode())
'''


class TestLinking:

    @pytest.mark.parametrize('order', [(0, 1), (1, 0), (0, 1, 0)])
    @pytest.mark.parametrize('when', ['all-compiled-first', 'at-once'])
    def test_two_roots_in_one_process(self, order, when, providers, tmp_path):
        roots = [paths.dummy_root(), providers / 'lossy']
        (tmp_path / 'object.c').write_text(OBJECT)
        done = subprocess.run(
            [sys.executable, '-c', IN_ONE_PROCESS, when, str(tmp_path),
             *(str(roots[i]) for i in order)], check=True, capture_output=True, text=True,
            env={**os.environ, 'DEVITOCOMP_CACHE': str(tmp_path / 'cache')}
        )
        assert done.stdout.split() == [['dummy', 'lossy'][i] for i in order]*2

    def test_with_devito(self, use_root, providers, tmp_path):
        """As operators are compiled: by Devito, from the metadata of an iet_pass."""
        from devito import configuration
        names = {}
        for name in (None, 'lossy', None):
            use_root(name and providers / name)
            provider = current_provider()
            metadata = linking.link(provider).metadata
            compiler = configuration['compiler'].__new_with__(mpi=False)
            compiler.add_include_dirs(metadata['include_dirs'])
            compiler.add_library_dirs(metadata['lib_dirs'], rpath=metadata['rpath'])
            compiler.add_libraries(metadata['libs'])
            defines = ''.join(f'#define {k} {v}\n' for k, v in metadata['headers'])
            soname = f'devitocomp_{provider.key}_{os.getpid()}'
            compiler.jit_compile(soname, defines + textwrap.dedent(OBJECT))
            library = compiler.load(str(compiler.get_jit_dir() / soname))
            library.name.restype = ct.c_char_p
            names[provider.name] = library.name().decode()
        assert names == {'dummy': 'dummy', 'lossy': 'lossy'}

    def test_record(self, use_root, providers, tmp_path, monkeypatch):
        use_root(None)
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path / 'one'))
        record = linking.link(current_provider())
        assert linking.link(current_provider()) == record
        assert hash(record) == hash(linking.link(current_provider()))
        assert record.key in record.token
        # Compiled code holds the run path
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path / 'two'))
        other = linking.link(current_provider())
        assert other.key == record.key and other.token != record.token

    def test_repaired(self, use_root, tmp_path, monkeypatch):
        use_root(None)
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path))
        provider = current_provider()
        linking.link(provider)
        folder = linking.link_dir(provider.key)
        library = folder / f'libdevitocomp-{provider.key}.so'
        stub = folder / f'libdevitocomp-{provider.key}-stub.so'
        library.unlink()
        library.symlink_to('/nonexistent')
        stub.unlink()
        linking.link(provider)
        assert library.resolve() == provider.library.resolve() and stub.is_file()
        shutil.rmtree(tmp_path)
        linking.link(provider)
        assert library.exists() and stub.is_file()

    def test_many_at_once(self, use_root, tmp_path, monkeypatch):
        use_root(None)
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path))
        provider = current_provider()
        with ThreadPoolExecutor(8) as pool:
            records = set(pool.map(linking.link, [provider]*16))
        assert len(records) == 1
        left = {i.name for i in linking.link_dir(provider.key).iterdir()}
        name = f'libdevitocomp-{provider.key}'
        assert {f'{name}.so', f'{name}-stub.so'} <= left <= \
            {'lib', f'{name}.so', f'{name}-stub.so'}

    def test_library_is_gone(self, use_root, copy_of_dummy):
        use_root(copy_of_dummy)
        provider = current_provider()
        linking.link(provider)
        provider.library.unlink()
        with pytest.raises(ProviderNotFound, match=re.escape(str(provider.library))):
            linking.link(provider)

    def test_no_compiler(self, use_root, tmp_path, monkeypatch):
        use_root(None)
        monkeypatch.setenv('DEVITOCOMP_CACHE', str(tmp_path))
        monkeypatch.setenv('CC', 'no-such-compiler')
        with pytest.raises(ProviderError, match='no-such-compiler.*CC'):
            linking.link(current_provider())


class TestCLI:

    def test_info(self, use_root, capsys):
        use_root(None)
        assert cli.main(['info']) == 0
        out = capsys.readouterr().out
        for i in (paths.dummy_root(), 'dummy', 'float32', 'host', 'lossless', '64x64x64',
                  paths.runtime_library(), paths.cache_dir()):
            assert str(i) in out

    def test_info_sample(self, use_root, providers, capsys):
        use_root(providers / 'lossy')
        args = ['info', '--shape', '8', '9', '--dtype', 'float32', '--error', '0.25']
        assert cli.main(args) == 0
        out = capsys.readouterr().out
        assert 'float32 8x9, error 0.25' in out and 'relative-max' in out

    @pytest.mark.parametrize('args, says', [
        (['--dtype', 'float64'], 'float64'), (['--dtype', 'nonsense'], 'nonsense'),
        (['--shape', '8'], '1 dimensions'), (['--shape', '0', '4'], 'at least 1'),
        (['--error', '-1'], 'error')
    ])
    def test_info_refused(self, args, says, use_root, capsys):
        use_root(None)
        assert cli.main(['info', *args]) == 1
        out, err = capsys.readouterr()
        assert says in err and err.count('\n') == 1 and not out

    def test_info_unusable(self, use_root, tmp_path):
        done = subprocess.run([sys.executable, '-m', 'devitocomp_plugin', 'info'],
                              capture_output=True, text=True,
                              env={**os.environ, 'DEVITOCOMP_ROOT': str(tmp_path)})
        assert done.returncode == 1 and not done.stdout
        assert str(tmp_path) in done.stderr and done.stderr.count('\n') == 1
