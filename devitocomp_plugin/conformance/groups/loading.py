"""What can be said before there is a plan."""
import ctypes as ct

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.checks import check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.exceptions import ProviderError
from devitocomp_plugin.provider import HEADER, check_header

KNOWN = {
    'flags': sum(abi.FLAGS),
    'execution_kinds': sum(1 << i for i in abi.EXECUTION_KINDS),
    'portable_kinds': sum(1 << i for i in abi.EXECUTION_KINDS),
    'dtypes': sum(1 << i for i in abi.DTYPES),
    'ranks': sum(1 << i for i in range(1, abi.MAX_RANK + 1)),
}
"""All bits that have a meaning, by field."""

OF_PLANS = ('error_kind', 'error_bound', 'max_compressed_bytes', 'payload_alignment',
            'sidecar_bytes', 'sidecar_alignment')

CANARY = 0xA7


@check('comes with a header of the right ABI version')
def header(t):
    try:
        check_header(t.driver.root / HEADER)
    except ProviderError as e:
        t.expect(False, str(e))


@check('has a name and a version, which do not change')
def strings(t):
    for name in ('devitocomp_provider_name', 'devitocomp_provider_version'):
        function = getattr(t.driver.functions, name)
        first, second = function(), function()
        if not t.expect(first, f'{name}() is {first!r}'):
            continue
        t.expect(first == second, f'{name}() is {first!r}, then {second!r}')
        t.expect(first.decode(errors='replace').isprintable(),
                 f'{name}() is {first!r}, which cannot be printed')


@check('makes claims that have a meaning and do not contradict each other')
def claims(t):
    struct = t.driver.limits(None)
    for field, known in KNOWN.items():
        value = getattr(struct, field)
        t.expect(not value & ~known, f'{field} is {value:#x}, which has bits without a '
                                     f'meaning: {value & ~known:#x}')
        t.expect(value or field in ('flags', 'portable_kinds'),
                 f'{field} is 0: nothing is offered')
    t.expect(not struct.portable_kinds & ~struct.execution_kinds,
             f'portable_kinds is {struct.portable_kinds:#x}, with kinds that are not '
             f'offered: execution_kinds is {struct.execution_kinds:#x}')
    flags = t.driver.claims.flags
    t.expect('deterministic' in flags or 'thread-independent' not in flags,
             'it claims THREAD_INDEPENDENT without DETERMINISTIC')
    for field in OF_PLANS:
        value = getattr(struct, field)
        t.expect(value == 0, f'without a plan, {field} is {value}, not 0')


@check('refuses limits that are NULL or of unknown size, and leaves them alone')
def limits_size(t):
    call = t.driver.functions.devitocomp_plan_limits
    status = call(None, None)
    t.expect(status == abi.INVALID_ARGUMENT,
             f'with limits NULL: {describe(status)}, not INVALID_ARGUMENT')
    for size in (0, 4, ct.sizeof(abi.LimitsStruct) - 8):
        struct = abi.LimitsStruct()
        ct.memset(ct.byref(struct), CANARY, ct.sizeof(struct))
        struct.struct_size = size
        before = bytes(struct)
        status = call(None, ct.byref(struct))
        t.expect(status == abi.INVALID_ARGUMENT, f'with struct_size {size}: '
                 f'{describe(status)}, not INVALID_ARGUMENT')
        t.expect(bytes(struct) == before, f'with struct_size {size}: limits are written')


@check('fills in limits of callers with a longer structure, within its size')
def limits_longer(t):
    size = ct.sizeof(abi.LimitsStruct)
    buffer = (ct.c_ubyte * (size + 128))(*[CANARY]*(size + 128))
    struct = abi.LimitsStruct.from_buffer(buffer)
    struct.struct_size = size + 64
    status = t.driver.functions.devitocomp_plan_limits(None, ct.byref(struct))
    t.expect(status == abi.OK, f'with struct_size {size + 64}: {describe(status)}')
    t.expect(struct.struct_size == size + 64,
             f'struct_size was {size + 64} and is {struct.struct_size}')
    t.expect(set(buffer[size + 64:]) == {CANARY}, 'writes beyond struct_size')


@check('has no message before anything has failed')
def no_message(t):
    message = t.driver.message()
    t.expect(message == '', f'devitocomp_message(NULL) is {message!r}')
