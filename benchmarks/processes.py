"""Fresh processes, without the time that it takes to build everything in each."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

__all__ = ['Template']


class Template:

    """
    A process that builds something, then forks a fresh one for each measurement.

    Nothing may be run, nor big memory touched, in what is called to build: threads do not
    survive a fork, and memory is to be fresh in each process.

    Parameters
    ----------
    build : callable
        What it returns is the first argument of what `run` calls.
    *args
        Of `build`.
    """

    def __init__(self, build, *args):
        self._pool = ProcessPoolExecutor(1, mp_context=get_context('spawn'))
        self._built = self._pool.submit(_build, build, args)

    def run(self, function, *args):
        """What a function returns, called in a fork."""
        self._built.result()
        return self._pool.submit(_run, function, args).result()

    def close(self):
        self._pool.shutdown()


_built = None


def _build(function, args):
    global _built
    _built = function(*args)


def _run(function, args):
    context = get_context('fork')
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(function(_built, *args)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise RuntimeError('the process of a measurement died; what it said is above') \
            from None
    finally:
        process.join()
