"""The whole suite, for one provider."""
import tempfile
from pathlib import Path

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.checks import (
    FAILED,
    NOT_CHECKED,
    PASSED,
    RULES,
    SHOWN,
    Failed,
    Result,
    Trial,
)
from devitocomp_plugin.conformance.driver import Driver
from devitocomp_plugin.conformance.groups import GROUPS
from devitocomp_plugin.conformance.runner import Unusable, ask, run_group
from devitocomp_plugin.conformance.spaces import HostSpace, unavailable

__all__ = ['validate']

LOADING = 'can be loaded, and exports the functions of this version of the interface'


def validate(root, groups=None, time_limit=120.):
    """
    Make the checks that need nothing but the provider, on each kind of execution that it
    offers.

    Parameters
    ----------
    root : Path
        A directory fit for DEVITOCOMP_ROOT.
    groups : iterable of str, optional
        Some of GROUPS; all by default.
    time_limit : float, optional
        Seconds that one check may take.

    Yields
    ------
    Result
        Of each check, and then of each rule that holds for all of them.
    """
    violations = []
    root = Path(root).resolve()
    with tempfile.TemporaryDirectory(prefix='devitocomp-validate-') as workdir:
        try:
            available = []
            for kind in ask(_offered, root, time_limit=time_limit):
                reason = ask(unavailable, kind)
                if reason is None:
                    available.append(kind)
                else:
                    yield Result(f'kinds.{kind}', f'works on execution kind {kind}',
                                 NOT_CHECKED, (reason,))
            if not available:
                yield Result('kinds.none', 'offers something that this machine has',
                             FAILED, ('nothing could be checked',))
                return
            for kind in available:
                for group in groups or GROUPS:
                    yield from run_group(root, kind, group, Path(workdir), violations,
                                         time_limit)
        except (OSError, Unusable) as e:
            yield Result('loading.library', LOADING, FAILED, (str(e),))
            return
    for rule, title in RULES.items():
        found = list(dict.fromkeys(what for i, what in violations if i == rule))
        more = (f'... and {len(found) - SHOWN} more',) if len(found) > SHOWN else ()
        yield Result(f'always.{rule}', title, FAILED if found else PASSED,
                     (*found[:SHOWN], *more))


def _offered(root):
    """The kinds of execution that a provider offers, by name, the host first."""
    driver = Driver(root, HostSpace())
    driver.trial = Trial(driver, None, lambda rule, what: None)
    try:
        offered = driver.claims.execution_kinds
    except Failed:
        offered = ()
    # Without a sensible claim, the host is where that is reported
    return [i for i in abi.EXECUTION_KINDS.values() if i in offered] or ['host']
