"""What MPI ranks agree on before one of them goes ahead."""

__all__ = ['find_comm', 'on_any_rank', 'on_first_rank', 'raise_together']


def find_comm(functions):
    """The communicator of the ranks that some functions live on; None if just one."""
    for f in functions:
        if f.grid is not None and f.grid.distributor.is_parallel:
            return f.grid.distributor.comm
    return None


def raise_together(error, comm):
    """Raise an error, if any: on all ranks that of the first which has one."""
    if comm is not None:
        for rank, e in enumerate(comm.allgather(error)):
            if e is not None:
                e.rank = rank
                raise e
    if error is not None:
        raise error


def on_first_rank(comm, function, *args):
    """
    Call a function on the first rank.

    Parameters
    ----------
    comm : MPI.Comm or None
        None if there is one rank only.
    function : callable
    *args
        Its arguments.

    Returns
    -------
    object
        What it returned there, on all ranks.

    Raises
    ------
    DevitoCompError
        What it raised there, on all ranks.
    """
    if comm is None:
        return function(*args)
    value = error = None
    if comm.rank == 0:
        try:
            value = function(*args)
        except Exception as e:
            error = e
    value, error = comm.bcast((value, error))
    if error is not None:
        raise error
    return value


def on_any_rank(comm, value):
    """Whether something is true on at least one rank."""
    return bool(value) if comm is None else any(comm.allgather(bool(value)))
