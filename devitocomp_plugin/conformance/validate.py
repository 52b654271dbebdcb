"""The whole suite, for one provider."""
import tempfile
from pathlib import Path

from devitocomp_plugin.conformance.checks import (
    FAILED,
    PASSED,
    RULES,
    SHOWN,
    Result,
)
from devitocomp_plugin.conformance.groups import GROUPS
from devitocomp_plugin.conformance.runner import Unusable, run_group

__all__ = ['validate']

LOADING = 'can be loaded, and exports the functions of this version of the interface'


def validate(root, groups=None, time_limit=120.):
    """
    Make the checks that need nothing but the provider.

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
        for group in groups or GROUPS:
            try:
                yield from run_group(root, 'host', group, Path(workdir), violations,
                                     time_limit)
            except Unusable as e:
                yield Result('loading.library', LOADING, FAILED, (str(e),))
                return
    for rule, title in RULES.items():
        found = list(dict.fromkeys(what for i, what in violations if i == rule))
        more = (f'... and {len(found) - SHOWN} more',) if len(found) > SHOWN else ()
        yield Result(f'always.{rule}', title, FAILED if found else PASSED,
                     (*found[:SHOWN], *more))
