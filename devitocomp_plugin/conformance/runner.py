"""
Checks run in processes of their own, so that neither a crash nor a hang of the provider
ends more than the check that met it.
"""
import ctypes as ct
import multiprocessing
import os
import resource
import signal
import threading
import time
from dataclasses import replace

import numpy as np

from devitocomp_plugin.conformance.checks import FAILED, Result, Trial, checks_of

__all__ = ['Unusable', 'ask', 'run_group']

# Forking from this process would hand down its threads' locks, and the state of whatever
# libraries it has used; starting anew for each process would mean seconds of imports
context = multiprocessing.get_context('forkserver')
context.set_forkserver_preload(['devitocomp_plugin.conformance.groups'])


class Unusable(Exception):
    """The library cannot be loaded, or ends the process that asks it something."""


def ask(function, *args, time_limit=60.):
    """
    Call a function in a process of its own, and return or raise what it does.

    Raises
    ------
    Unusable
        If the process does not survive that, or takes longer than a time limit.
    """
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, daemon=True, args=(sender, function, args))
    process.start()
    sender.close()
    what, value = next(_follow(process, receiver, time_limit))
    if what == 'raised':
        raise value
    if what == 'died':
        raise Unusable(value)
    return value


def _answer(pipe, function, args):
    try:
        pipe.send(('answer', function(*args)))
    except Exception as e:
        pipe.send(('raised', e))


def _functions(group):
    from devitocomp_plugin.conformance.groups import GROUPS
    return checks_of(GROUPS[group])


def _child(pipe, root, space, group, first, workdir, log):
    # What C code prints is to be seen too, hence descriptors and not sys.stdout
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for i in (1, 2):
        os.dup2(descriptor, i)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Data at the limits of their type are what we want, no reason for a warning
    np.seterr(all='ignore')

    from devitocomp_plugin.conformance.driver import Driver
    from devitocomp_plugin.conformance.spaces import SPACES
    try:
        driver = Driver(root, SPACES[space]())
    except OSError as e:
        pipe.send(('unusable', str(e)))
        return
    lock = threading.Lock()
    for n, function in list(enumerate(_functions(group)))[first:]:
        if function.fresh and n > first:
            break
        pipe.send(('begin', n))

        def violate(rule, what, name=function.name):
            # From any of the threads of a check
            with lock:
                pipe.send(('violation', rule, f'{name}: {what}'))

        printed = os.fstat(descriptor).st_size
        driver.trial = Trial(driver, workdir, violate)
        result = driver.trial.run(function)
        # C has buffers of its own
        ct.CDLL(None).fflush(None)
        text = os.pread(descriptor, 200, printed).decode(errors='replace').strip()
        if text:
            violate('silence', repr(text))
        pipe.send(('result', result))
    pipe.send(('end',))
    # Without the destructors of whatever the provider has loaded, which might hang
    os._exit(0)


def _follow(process, receiver, time_limit):
    """The messages of a process; the last one, ('died', how), if it did."""
    deadline = time.monotonic() + time_limit
    while True:
        if not receiver.poll(max(deadline - time.monotonic(), 0)):
            process.kill()
            process.join()
            yield 'died', f'it did not end within {time_limit:g} s'
            return
        try:
            message = receiver.recv()
        except EOFError:
            process.join()
            yield 'died', _death(process.exitcode)
            return
        deadline = time.monotonic() + time_limit
        yield message


def _death(code):
    if code >= 0:
        return f'the process was ended, with exit status {code}'
    try:
        return f'the process was killed by {signal.Signals(-code).name}'
    except ValueError:
        return f'the process was killed by signal {-code}'


def _last_line(log):
    try:
        lines = log.read_text(errors='replace').strip().splitlines()
    except OSError:
        lines = []
    return f', having printed {lines[-1]!r}' if lines else ''


def run_group(root, space, group, workdir, violations, time_limit):
    """
    Run the checks of a group. When one ends the process, the others run in a new one.

    Parameters
    ----------
    root : Path
        Of the provider.
    space : str
        Where it is to run: one of SPACES.
    group : str
        One of GROUPS.
    workdir : Path
        A folder for what checks leave for each other.
    violations : list
        Receives (rule, what) for each violation of one of the RULES.
    time_limit : float
        Seconds that one check may take.

    Yields
    ------
    Result
        Of each check.

    Raises
    ------
    Unusable
        If the library cannot be loaded.
    """
    def named(result):
        prefix = '' if space == 'host' else f'{space}/'
        return replace(result, name=prefix + result.name)

    functions = _functions(group)
    log = workdir / f'{group}.log'
    first = 0
    while first < len(functions):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, daemon=True, args=(
            sender, root, space, group, first, workdir, log))
        process.start()
        sender.close()
        at = None
        for what, *values in _follow(process, receiver, time_limit):
            if what == 'begin':
                at, = values
            elif what == 'violation':
                violations.append(tuple(values))
            elif what == 'result':
                yield named(values[0])
                first = at + 1
            elif what == 'unusable':
                raise Unusable(values[0])
            elif what == 'died' and at is None:
                raise Unusable(values[0] + ' while the library was loaded'
                               + _last_line(log))
            elif what == 'died' and first <= at:
                function = functions[at]
                yield named(Result(function.name, function.title, FAILED,
                                   (values[0] + _last_line(log),)))
                first = at + 1
            if what in ('end', 'died'):
                break
        process.join()
        receiver.close()
