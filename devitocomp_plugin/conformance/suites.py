"""The acceptance suites, which exercise a provider through real lowering."""
import os
import subprocess
import sys
from pathlib import Path

from devitocomp_plugin import paths
from devitocomp_plugin.config import DevitoComp
from devitocomp_plugin.conformance.checks import FAILED, PASSED, Result
from devitocomp_plugin.provider import provider_at

__all__ = ['SUITES', 'find_suites', 'run_suites', 'tolerances']

SUITES = ('test_compressed_funcs.py', 'test_composite_funcs.py')

SHOWN = 10
"""How many failures of a suite are reported."""


def find_suites(named=None):
    """
    The folder of the suites.

    Parameters
    ----------
    named : str, optional
        What the user says it is; by default, next to the package, where a source
        checkout has it.

    Returns
    -------
    Path or None
    """
    folder = Path(named) if named else paths.BUNDLED.parent.parent / 'tests'
    return folder.resolve() if any((folder / i).is_file() for i in SUITES) else None


def tolerances(root):
    """
    What to set DEVITOCOMP_RTOL to: the lossless mode first, if there is one, and then
    what the provider promises by default.

    Parameters
    ----------
    root : Path
        Of the provider.

    Returns
    -------
    list of (str or None)
        None for leaving it unset, so that results have to be exact.

    Raises
    ------
    ValueError
        If the provider promises nothing that the suites could hold it to.
    """
    provider = provider_at(root)
    claims = provider.claims
    rank = next((i for i in (3, 2) if i in claims.ranks), None)
    if 'float32' not in {str(i) for i in claims.dtypes} or rank is None:
        raise ValueError('the suites need float32 tensors of rank 2 and 3')
    shape = (16,)*rank
    default = provider.check_tensor('float32', shape)
    if default is None:
        raise ValueError('the suites need execution on the host')
    if default.lossless:
        return [None]
    if default.error_kind != 'relative-max':
        raise ValueError(f'by default the provider promises an error of kind '
                         f'{default.error_kind}, to which the suites cannot hold it; '
                         f'pass --rtol')
    exact = []
    try:
        if provider.check_tensor('float32', shape, '0').lossless:
            exact.append('0')
    except ValueError:
        # It has no such mode
        pass
    return [*exact, DevitoComp(default.error_bound).options]


def run_suites(root, folder, rtols):
    """
    Run the suites with each tolerance.

    Parameters
    ----------
    root : Path
        Of the provider.
    folder : Path or None
        Where the suites are.
    rtols : list of (str or None)
        For DEVITOCOMP_RTOL.

    Yields
    ------
    Result
    """
    for suite in SUITES:
        name = f'suites.{suite.removesuffix(".py")}'
        if folder is None or not (folder / suite).is_file():
            yield Result(name, f'passes {suite}', FAILED, (
                f'not run: there is no {suite} in {folder}' if folder else
                'not run: no source checkout is at hand; name its folder of tests with '
                '--suites, or do without with --no-suites',))
            continue
        for rtol in rtols:
            how = 'exactly' if rtol is None else f'with DEVITOCOMP_RTOL={rtol}'
            yield _run(name, f'passes {suite} {how}', root, folder, suite, rtol)


def _run(name, title, root, folder, suite, rtol):
    environment = {**os.environ, 'DEVITOCOMP_ROOT': str(root)}
    environment.pop('DEVITOCOMP_RTOL', None)
    if rtol is not None:
        environment['DEVITOCOMP_RTOL'] = rtol
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-rf', '-p', 'no:cacheprovider', '--tb=no',
         '-k', 'devitocomp', suite],
        cwd=folder, env=environment, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    failures = [i for i in lines if i.startswith(('FAILED', 'ERROR'))]
    last = (lines or done.stderr.strip().splitlines() or ['no output'])[-1]
    more = [f'... and {len(failures) - SHOWN} more'] if len(failures) > SHOWN else []
    return Result(name, title, PASSED if done.returncode == 0 else FAILED,
                  (last.strip('= '), *failures[:SHOWN], *more))
