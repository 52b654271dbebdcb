"""Payloads that move between kinds of execution, as far as that is claimed."""
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, NotChecked, check
from devitocomp_plugin.conformance.driver import Driver
from devitocomp_plugin.conformance.samples import discrepancy, make
from devitocomp_plugin.conformance.spaces import SPACES, unavailable
from devitocomp_plugin.conformance.tensors import cases

SORTS = ('random', 'zero', 'spike')


@check('decompresses what was compressed on the other kinds of execution that it claims')
def kinds(t):
    own = t.driver.space.name
    portable = t.driver.claims.portable_kinds
    others = sorted(portable - {own})
    if own not in portable or not others:
        raise NotApplicable(f'it claims no payloads that are portable between {own} and '
                            f'another kind')
    reasons = {i: unavailable(i) for i in others}
    for kind in others:
        if reasons[kind] is None:
            exchange(t, kind)
        else:
            t.note(f'{kind}: not checked: {reasons[kind]}')
    if all(reasons.values()):
        raise NotChecked('; '.join(f'{i}: {reason}' for i, reason in reasons.items()))


def exchange(t, kind):
    other = Driver(t.driver.root, SPACES[kind]())
    other.trial = t
    for dtype, shape, options in cases(t):
        with t.context(f'from {kind} to {t.driver.space.name}'), \
                Bench(other, dtype, shape, options=options) as source, \
                Bench(t.driver, dtype, shape, options=options) as target:
            for sort in SORTS:
                data = make(sort, shape, dtype)
                if data is None:
                    continue
                found = target.decompress(source.compress(data))
                wrong = discrepancy(target.limits, data, found)
                t.expect(wrong is None, f'{target.label}, {sort}: {wrong}')
