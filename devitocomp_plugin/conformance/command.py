"""`devitocomp validate`."""
import os
from pathlib import Path

from devitocomp_plugin import paths
from devitocomp_plugin.config import DevitoComp
from devitocomp_plugin.conformance import runner, suites
from devitocomp_plugin.conformance.checks import FAILED, Result
from devitocomp_plugin.conformance.groups import GROUPS
from devitocomp_plugin.conformance.report import Report
from devitocomp_plugin.conformance.validate import validate
from devitocomp_plugin.exceptions import ProviderError
from devitocomp_plugin.provider import check_layout

__all__ = ['run']


def run(args):
    """
    Make all checks, and print a report.

    Parameters
    ----------
    args : argparse.Namespace
        See `devitocomp_plugin.cli`.

    Returns
    -------
    int
        The exit status, 0 if all hold.
    """
    named = args.root or os.environ.get('DEVITOCOMP_ROOT') or paths.dummy_root()
    root = Path(named).expanduser().resolve()
    check_layout(named, root)
    unknown = set(args.group or ()) - set(GROUPS)
    if unknown:
        raise ValueError(f'--group: there is no group {sorted(unknown)[0]!r}, only '
                         f'{", ".join(GROUPS)}')
    # As functions refuse them
    rtols = args.rtol and [DevitoComp(i).options for i in args.rtol]
    folder = suites.find_suites(args.suites)
    if args.suites and folder is None:
        raise ValueError(f'--suites: {args.suites} has none of '
                         f'{", ".join(suites.SUITES)}')

    print(f'validating {root}\n')
    report = Report(lambda line: print(line, flush=True))
    for result in validate(root, args.group, args.time_limit):
        report.add(result)
    if not args.no_suites and not args.group:
        for result in _suites(root, folder, rtols):
            report.add(result)
    report.conclude()
    return 0 if report.passed else 1


def _suites(root, folder, rtols):
    try:
        rtols = rtols or runner.ask(suites.tolerances, root)
    except (ProviderError, ValueError, runner.Unusable) as e:
        return [Result('suites.tolerance', 'can be held to a tolerance', FAILED,
                       (f'not run: {e}',))]
    return suites.run_suites(root, folder, rtols)

