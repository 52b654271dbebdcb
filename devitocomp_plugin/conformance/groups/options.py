"""Strings of options: what a caller passes, and what it should not."""
import locale

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.conformance.samples import small_shape
from devitocomp_plugin.conformance.tensors import a_tensor, tensors
from devitocomp_plugin.exceptions import ProviderError
from devitocomp_plugin.plan import Limits

NUMBERS = ('0', '0.01', '1e-300', '0.001', '1e-05', '1', '0.3333333333333333', '2.5e+20')
ODD = ('abc', '-1', 'nan', '', 'inf', '0,01', ' 0.01', '1e400', '0x1p-7', '0.01x', '%s%n',
       '9'*5000)
COMMA_LOCALES = ('de_DE.UTF-8', 'de_DE.utf8', 'fr_FR.UTF-8', 'de_DE', 'pt_BR.UTF-8')


def outcome(t, options, dtype=None, rank=None):
    """
    Try to create a plan.

    Returns
    -------
    (int, LimitsStruct or None)
        Status and limits.
    """
    tensor = a_tensor(t) if rank is None else abi.make_tensor(dtype, small_shape(rank))
    status, plan = t.driver.create(tensor, options=options)
    if status != abi.OK:
        return status, None
    try:
        return status, t.driver.limits(plan)
    finally:
        t.driver.destroy(plan)


def shown(struct):
    kind = abi.ERROR_KINDS.get(struct.error_kind, f'unknown ({struct.error_kind})')
    return f'{kind} {struct.error_bound:g}'


@check('takes NULL, choosing a tolerance itself')
def default(t):
    for dtype, rank in tensors(t):
        status, struct = outcome(t, None, dtype, rank)
        if t.expect(status == abi.OK, f'{dtype} rank {rank}: {t.driver.reason(status)}'):
            t.note(f'{dtype} rank {rank}: {shown(struct)}')


@check('takes a tolerance and promises no more than that, or says UNSUPPORTED')
def numbers(t):
    for dtype, rank in tensors(t):
        for options in NUMBERS:
            status, struct = outcome(t, options, dtype, rank)
            what = f'{dtype} rank {rank} options {options!r}'
            if status == abi.OK:
                try:
                    Limits.from_struct(struct, t.driver.root.name, options)
                except ProviderError as e:
                    t.expect(False, f'{what}: {e}')
            else:
                t.expect(status == abi.UNSUPPORTED,
                         f'{what}: {describe(status)}, not OK or UNSUPPORTED')
            if (dtype, rank) == tensors(t)[0]:
                t.note(f'{options!r}: ' + (shown(struct) if struct else
                                           t.driver.reason(status)))


@check('survives options that are no tolerance')
def odd(t):
    for options in ODD:
        status, struct = outcome(t, options)
        name = options if len(options) < 20 else f'{options[:8]}... ({len(options)})'
        t.note(f'{name!r}: {shown(struct) if struct else t.driver.reason(status)[:90]}')


@check('reads a decimal point in locales that write a comma')
def comma(t):
    _, expected = outcome(t, '0.01')
    if expected is None:
        raise NotApplicable("it does not take '0.01'")
    for name in COMMA_LOCALES:
        try:
            locale.setlocale(locale.LC_ALL, name)
            break
        except locale.Error:
            continue
    else:
        raise NotApplicable(f'none of these locales is installed: '
                            f'{", ".join(COMMA_LOCALES)}')
    try:
        status, struct = outcome(t, '0.01')
    finally:
        locale.setlocale(locale.LC_ALL, 'C')
    t.expect(struct and shown(struct) == shown(expected),
             f"in {name}, '0.01' means {shown(struct) if struct else describe(status)}, "
             f"otherwise {shown(expected)}")
