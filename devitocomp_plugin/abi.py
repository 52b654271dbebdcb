"""
The C interfaces seen from Python: `devitocomp.h`, which providers implement, and
`devitocomp_store.h`, the runtime store.

Names follow the headers, less their prefix. Only layouts and prototypes live here; what
the calls mean is documented in the headers.
"""
import ctypes as ct
import threading

import numpy as np

from devitocomp_plugin import paths

__all__ = ['ABI_VERSION', 'Config', 'Disk', 'Execution', 'Failure', 'Info',
           'LimitsStruct', 'MAX_RANK', 'Memory', 'Slot', 'Tensor', 'Usage', 'View',
           'contiguous_strides', 'dtype_code', 'dtype_of', 'execution', 'make_tensor',
           'runtime', 'status_name']

ABI_VERSION = 1
MAX_RANK = 8

# devitocomp_status_t
OK = 0
INVALID_ARGUMENT = 1
UNSUPPORTED = 2
BUFFER_TOO_SMALL = 3
OUT_OF_MEMORY = 4
CORRUPT_PAYLOAD = 5
VERSION_MISMATCH = 6
PROVIDER_ERROR = 7

# Of stores only
IO_ERROR = 64

STATUSES = ('OK', 'INVALID_ARGUMENT', 'UNSUPPORTED', 'BUFFER_TOO_SMALL', 'OUT_OF_MEMORY',
            'CORRUPT_PAYLOAD', 'VERSION_MISMATCH', 'PROVIDER_ERROR')

# devitocomp_dtype_t
DTYPES = {1: np.dtype(np.float32), 2: np.dtype(np.float64), 3: np.dtype(np.float16),
          4: np.dtype(np.int32), 5: np.dtype(np.int64)}
DTYPE_CODES = {v: k for k, v in DTYPES.items()}

# devitocomp_execution_kind_t
HOST, CUDA, HIP = 1, 2, 3
EXECUTION_KINDS = {HOST: 'host', CUDA: 'cuda', HIP: 'hip'}

# devitocomp_error_kind_t
ERROR_KINDS = {0: 'none', 1: 'lossless', 2: 'relative-max', 3: 'absolute'}

# devitocomp_limits_t.flags
FLAGS = {0x1: 'strided', 0x2: 'deterministic', 0x4: 'thread-independent',
         0x8: 'detects-corruption', 0x10: 'uses-sidecar'}

# devitocomp_store_acquire
WILL_MODIFY = 1

_Extents = ct.c_int64 * MAX_RANK


def _struct(name, fields, doc):
    return type(name, (ct.Structure,), {'_fields_': fields, '__doc__': doc})


Execution = _struct('Execution', [
    ('struct_size', ct.c_uint32), ('kind', ct.c_uint32), ('num_threads', ct.c_uint32),
    ('reserved', ct.c_uint32), ('stream', ct.c_void_p),
], 'devitocomp_execution_t')

Tensor = _struct('Tensor', [
    ('struct_size', ct.c_uint32), ('dtype', ct.c_uint32), ('rank', ct.c_uint32),
    ('reserved', ct.c_uint32), ('dims', _Extents), ('strides', _Extents),
], 'devitocomp_tensor_t')

LimitsStruct = _struct('LimitsStruct', [
    ('struct_size', ct.c_uint32), ('flags', ct.c_uint32),
    ('execution_kinds', ct.c_uint32), ('portable_kinds', ct.c_uint32),
    ('dtypes', ct.c_uint32), ('ranks', ct.c_uint32), ('payload_version', ct.c_uint32),
    ('error_kind', ct.c_uint32), ('error_bound', ct.c_double),
    ('max_compressed_bytes', ct.c_uint64), ('payload_alignment', ct.c_uint64),
    ('sidecar_bytes', ct.c_uint64), ('sidecar_alignment', ct.c_uint64),
], 'devitocomp_limits_t')

View = _struct('View', [
    ('data', ct.c_void_p), ('offset', ct.c_int64), ('rank', ct.c_uint32),
    ('kind', ct.c_uint32), ('dims', _Extents), ('strides', _Extents),
], 'devitocomp_view_t')

Slot = _struct('Slot', [
    ('ready', ct.c_int), ('index', ct.c_int64), ('tensor', ct.c_void_p),
    ('payload', ct.c_void_p), ('capacity', ct.c_size_t), ('payload_bytes', ct.c_size_t),
    ('sidecar', ct.c_void_p), ('start', ct.c_double), ('view', View),
    ('unwritten', ct.c_int), ('failed', ct.c_int),
], 'devitocomp_slot_t')

Config = _struct('Config', [
    ('name', ct.c_char_p), ('nsnapshots', ct.c_int64), ('dtype', ct.c_uint32),
    ('rank', ct.c_uint32), ('dims', _Extents),
], 'devitocomp_store_config_t')

Disk = _struct('Disk', [
    ('directory', ct.c_char_p), ('store_id', ct.c_uint64), ('cache_bytes', ct.c_uint64),
    ('read_only', ct.c_int),
], 'devitocomp_disk_t')

Memory = _struct('Memory', [
    ('kind', ct.c_uint32), ('name', ct.c_char_p), ('alignment', ct.c_size_t),
    ('allocate', ct.CFUNCTYPE(ct.c_void_p, ct.c_size_t)),
    ('release', ct.CFUNCTYPE(None, ct.c_void_p)),
    ('copy', ct.CFUNCTYPE(ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_size_t)),
], 'devitocomp_memory_t')

Info = _struct('Info', [
    ('stored', ct.c_int), ('raw_bytes', ct.c_uint64), ('payload_bytes', ct.c_uint64),
    ('sidecar_bytes', ct.c_uint64), ('compress_seconds', ct.c_double),
    ('decompress_seconds', ct.c_double), ('decompressions', ct.c_uint64),
], 'devitocomp_snapshot_info_t')

Failure = _struct('Failure', [
    ('status', ct.c_int), ('index', ct.c_int64), ('action', ct.c_char * 32),
    ('message', ct.c_char * 512),
], 'devitocomp_failure_t')

Usage = _struct('Usage', [
    ('stored_bytes', ct.c_uint64), ('resident_bytes', ct.c_uint64),
    ('metadata_bytes', ct.c_uint64),
], 'devitocomp_usage_t')


_void_pp = ct.POINTER(ct.c_void_p)
_size_p = ct.POINTER(ct.c_size_t)
_exec_p = ct.POINTER(Execution)
_limits_p = ct.POINTER(LimitsStruct)

# name -> (result, arguments); plans and stores are opaque
PROVIDER_FUNCTIONS = {
    'devitocomp_abi_version': (ct.c_uint32, []),
    'devitocomp_provider_name': (ct.c_char_p, []),
    'devitocomp_provider_version': (ct.c_char_p, []),
    'devitocomp_plan_create': (
        ct.c_int, [ct.c_uint32, ct.POINTER(Tensor), _exec_p, ct.c_char_p, _void_pp]),
    'devitocomp_plan_destroy': (None, [ct.c_void_p]),
    'devitocomp_plan_limits': (ct.c_int, [ct.c_void_p, _limits_p]),
    'devitocomp_compress': (
        ct.c_int, [ct.c_void_p, _exec_p, ct.c_void_p, ct.c_void_p, ct.c_size_t, _size_p,
                   ct.c_void_p]),
    'devitocomp_decompress': (
        ct.c_int, [ct.c_void_p, _exec_p, ct.c_void_p, ct.c_size_t, ct.c_void_p,
                   ct.c_void_p]),
    'devitocomp_message': (ct.c_char_p, [ct.c_void_p]),
}

STORE_FUNCTIONS = {
    'devitocomp_store_tensor': (Tensor, [ct.c_void_p, View]),
    'devitocomp_store_planned': (
        None, [ct.c_void_p, ct.c_int, ct.c_char_p, LimitsStruct]),
    'devitocomp_store_reserve': (Slot, [ct.c_void_p, ct.c_int64, View]),
    'devitocomp_store_commit': (
        None, [ct.c_void_p, ct.POINTER(Slot), ct.c_int, ct.c_char_p]),
    'devitocomp_store_acquire': (Slot, [ct.c_void_p, ct.c_int64, View, ct.c_int]),
    'devitocomp_store_release': (
        None, [ct.c_void_p, ct.POINTER(Slot), ct.c_int, ct.c_char_p]),
    'devitocomp_store_covers': (ct.c_int, [ct.c_void_p, ct.c_int64]),
    'devitocomp_store_failed': (ct.c_int, [ct.c_void_p]),
    'devitocomp_store_kind': (ct.c_int, [ct.c_void_p]),
    'devitocomp_store_packed': (Tensor, [ct.c_void_p]),
    'devitocomp_store_create': (ct.c_void_p, [ct.POINTER(Config)]),
    'devitocomp_store_create_in': (
        ct.c_void_p, [ct.POINTER(Config), ct.POINTER(Memory)]),
    'devitocomp_store_open': (
        ct.c_void_p, [ct.POINTER(Config), ct.POINTER(Disk), ct.POINTER(Failure)]),
    'devitocomp_store_sync': (ct.c_int, [ct.c_void_p]),
    'devitocomp_store_destroy': (None, [ct.c_void_p]),
    'devitocomp_store_bind': (ct.c_int, [ct.c_void_p, _limits_p]),
    'devitocomp_store_begin': (ct.c_int, [ct.c_void_p, ct.c_int]),
    'devitocomp_store_end': (None, [ct.c_void_p]),
    'devitocomp_store_clear': (None, [ct.c_void_p]),
    'devitocomp_store_failure': (None, [ct.c_void_p, ct.POINTER(Failure)]),
    'devitocomp_store_usage': (None, [ct.c_void_p, ct.POINTER(Usage)]),
    'devitocomp_store_info': (ct.c_int, [ct.c_void_p, ct.c_int64, ct.POINTER(Info)]),
    'devitocomp_store_peek': (
        ct.c_int, [ct.c_void_p, ct.c_int64, _void_pp, _size_p, _void_pp]),
    'devitocomp_store_put': (
        ct.c_int, [ct.c_void_p, ct.c_int64, ct.c_void_p, ct.c_size_t, ct.c_void_p]),
}


def declare(library, functions):
    """
    Give the functions of a loaded library their prototypes.

    Returns
    -------
    list of str
        The functions that the library does not export.
    """
    missing = []
    for name, (restype, argtypes) in functions.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            missing.append(name)
            continue
        function.restype = restype
        function.argtypes = argtypes
    return missing


_runtime = None
_runtime_lock = threading.Lock()


def runtime():
    """
    The runtime store's library, loaded once.

    Operators find it by its SONAME, so that they share this instance.
    """
    global _runtime
    with _runtime_lock:
        if _runtime is None:
            path = paths.runtime_library()
            try:
                library = ct.CDLL(str(path))
                missing = declare(library, STORE_FUNCTIONS)
                reason = f'it lacks {", ".join(missing)}' if missing else None
            except OSError as e:
                reason = str(e)
            if reason:
                from devitocomp_plugin.exceptions import InstallationError
                raise InstallationError(f'{path} is unusable: {reason}. Reinstall '
                                        f'devitocomp_plugin.')
            _runtime = library
    return _runtime


def status_name(status):
    """Name of a status, without prefix. Unknown ones count as PROVIDER_ERROR."""
    if status == IO_ERROR:
        return 'IO_ERROR'
    known = 0 <= status < len(STATUSES)
    return STATUSES[status] if known else STATUSES[PROVIDER_ERROR]


def dtype_code(dtype):
    """The `devitocomp_dtype_t` of a NumPy dtype; ValueError if there is none."""
    dtype = np.dtype(dtype)
    try:
        return DTYPE_CODES[dtype]
    except KeyError:
        offered = ', '.join(str(i) for i in DTYPE_CODES)
        raise ValueError(f'no compression of dtype {dtype}: only of {offered}') from None


def dtype_of(code):
    """The NumPy dtype of a `devitocomp_dtype_t`; ValueError if it is unknown."""
    try:
        return DTYPES[code]
    except KeyError:
        raise ValueError(f'unknown devitocomp_dtype_t {code}') from None


def contiguous_strides(shape):
    """Strides, in elements, of a C-contiguous array."""
    strides = [1]
    for i in reversed(shape[1:]):
        strides.insert(0, strides[0] * int(i))
    return tuple(strides[:len(shape)])


def make_tensor(dtype, shape, strides=None):
    """A filled-in `devitocomp_tensor_t`; strides in elements, None for contiguous."""
    shape = tuple(int(i) for i in shape)
    strides = contiguous_strides(shape) if strides is None else tuple(strides)
    if not 1 <= len(shape) <= MAX_RANK or len(strides) != len(shape):
        raise ValueError(f'need 1 to {MAX_RANK} dimensions and as many strides, got '
                         f'shape {shape} and strides {strides}')
    if min(shape) < 1:
        raise ValueError(f'all extents must be at least 1, got shape {shape}')
    return Tensor(ct.sizeof(Tensor), dtype_code(dtype), len(shape), 0, _Extents(*shape),
                  _Extents(*(int(i) for i in strides)))


def execution(kind='host', num_threads=0):
    """
    A filled-in `devitocomp_execution_t`: for 'host', or for 'cuda' or 'hip' on the
    default stream.
    """
    code = next(k for k, v in EXECUTION_KINDS.items() if v == kind)
    return Execution(ct.sizeof(Execution), code, max(int(num_threads), 0), 0, None)
