"""What programs that MPI starts have in common."""

import sys
import traceback

from devito.mpi import MPI


def run(main, *args):
    """Exit with what `main` returns; if it raises, end all ranks."""
    try:
        status = main(*args)
    except BaseException:
        # The other ranks would wait for this one
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
