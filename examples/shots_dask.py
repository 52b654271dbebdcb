"""
The gradient of full-waveform inversion, summed over shots that run on many workers.

Each worker of a Dask cluster keeps the compressed snapshots of the shot it works on in a
store of its own, on disk. Should a worker die, the shot is done again elsewhere:

    pip install '.[dask]'
    python examples/shots_dask.py
    python examples/shots_dask.py --shots 32 --workers 8 --error 1e-3 --scratch /scratch
    python examples/shots_dask.py --scheduler tcp://node001:8786 --scratch /scratch
    python examples/shots_dask.py --kill        # a worker, in the middle of a shot

At the end the sum is compared with that of the same shots one after the other.
"""

import os
import shutil
import signal
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np

os.environ.setdefault('DEVITO_LANGUAGE', 'openmp')
os.environ.setdefault('DEVITO_LOGGING', 'WARNING')

from acoustic import Shot, layered_model, smooth  # noqa: E402
from devito import Function  # noqa: E402
from gradient import (  # noqa: E402
    difference,
    forward_operator,
    gradient_operator,
    make_history,
)

from devitocomp_plugin import DevitoComp  # noqa: E402


def shot_gradient(number, count, options, scratch=None, kill=None):
    """
    The gradient of one shot.

    Parameters
    ----------
    number, count : int
        Which of how many shots along a line.
    options : Namespace
        Of the command line.
    scratch : Path, optional
        A directory for the snapshots. In memory if not given.
    kill : Path, optional
        A file. If there is none yet, make it, then kill this process in mid-shot.

    Returns
    -------
    numpy.ndarray
    """
    shot = make_shot(number, count, options)
    where = {}
    if scratch is not None:
        # Whatever is there is from a worker that died: this shot is now ours
        directory = Path(scratch) / f'shot{number:04d}'
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        where = {'layers': 'disk-host', 'serialization': directory}
    usave = make_history(shot, DevitoComp(error=options.error), **where)
    grad = Function(name='grad', grid=shot.grid)
    forward = forward_operator(shot, usave)
    gradient = gradient_operator(shot, usave, grad)

    # What is recorded in the true model. A real survey is read from files here
    forward_operator(shot).apply(m=shot.m_true, time_m=0, time_M=shot.nt - 1)
    observed = np.array(shot.rec.data)

    shot.reset()
    forward.apply(time_m=0, time_M=shot.nt - 1)
    if kill is not None and not kill.exists():
        kill.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    shot.residual.data[:] = shot.rec.data - observed
    gradient.apply(time_m=0, time_M=shot.nt - 1)

    if scratch is not None:
        usave.clear()
        shutil.rmtree(directory)
    return np.array(grad.data)


def make_shot(number, count, options):
    """Shots are spread evenly along the surface."""
    vp = layered_model(options.shape, options.spacing)
    shot = Shot(vp, smooth(vp, 1000*vp.min()/options.freq/options.spacing),
                options.spacing, 20, 8, options.freq, nt=options.steps)
    size = (options.shape[0] - 1)*options.spacing
    shot.src.coordinates.data[0, 0] = size*(number + 1)/(count + 1)
    return shot


def connect(options, stack):
    """A client of the cluster that was asked for; of a local one by default."""
    from dask.distributed import Client, LocalCluster

    if options.scheduler:
        return stack.enter_context(Client(options.scheduler))
    # Shots are independent of each other: one at a time in each process
    threads = max(1, len(os.sched_getaffinity(0)) // options.workers)
    os.environ['OMP_NUM_THREADS'] = str(threads)
    cluster = LocalCluster(n_workers=options.workers, threads_per_worker=1,
                           dashboard_address=None)
    stack.enter_context(cluster)
    return stack.enter_context(Client(cluster))


def sum_over_workers(options):
    """The gradient of all shots, and the seconds that it took."""
    with ExitStack() as stack:
        scratch = options.scratch
        if scratch is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scratch.mkdir(parents=True, exist_ok=True)
        kill = None
        if options.kill:
            kill = Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'killed'
        client = connect(options, stack)

        start = perf_counter()
        futures = [client.submit(shot_gradient, i, options.shots, options, scratch, kill,
                                 retries=2, pure=False) for i in range(options.shots)]
        # In the order of shots, whoever comes first: sums of floats depend on it
        total = sum(i.result() for i in futures)
        seconds = perf_counter() - start

        if kill is not None:
            print(f"A worker was killed in mid-shot: {'yes' if kill.exists() else 'NO'}")
        left = sorted(i.name for i in scratch.iterdir())
        print(f"Left behind in the scratch directory: {', '.join(left) or 'nothing'}")
    return total, seconds


def parse(args=None):
    parser = ArgumentParser(description=__doc__,
                            formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--shots', type=int, default=4, metavar='N', help='(default: 4)')
    add('--workers', type=int, default=2, metavar='N', help='of a cluster on this '
        'machine (default: 2)')
    add('--scheduler', metavar='ADDRESS', help='of a cluster that is running already, '
        'whose workers have this directory in their PYTHONPATH')
    add('--scratch', type=Path, metavar='DIR', help='for snapshots, where all workers '
        'can reach it or each has its own (default: a temporary directory)')
    add('--error', type=float, default=1e-3, metavar='E', help='(default: 1e-3)')
    add('--shape', type=int, nargs='+', default=[101, 101], metavar='N',
        help='(default: 101 101)')
    add('--spacing', type=float, default=10., metavar='D', help='in m (default: 10)')
    add('--steps', type=int, default=300, metavar='NT', help='(default: 300)')
    add('--freq', type=float, default=15., metavar='F', help='in Hz (default: 15)')
    add('--kill', action='store_true', help='kill a worker in the middle of a shot')
    return parser.parse_args(args)


def main(args=None):
    options = parse(args)
    total, seconds = sum_over_workers(options)

    start = perf_counter()
    serial = sum(shot_gradient(i, options.shots, options) for i in range(options.shots))
    print(f"{options.shots} shots: {seconds:.1f} s on workers, "
          f"{perf_counter() - start:.1f} s one after the other")
    if np.array_equal(total, serial):
        print("The gradients are identical, to the bit")
    else:
        print(f"The gradients differ by {difference(total, serial):.1e} (relative L2)")


if __name__ == '__main__':
    main()
