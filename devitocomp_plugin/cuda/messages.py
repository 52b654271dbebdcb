"""Messages between the ranks of MPI: from and to the memory of devices."""

from devito.exceptions import InvalidOperator
from devito.ir import Call, DeviceCall, FindNodes, Iteration, List, Transformer
from devito.mpi.distributed import MPICommObject
from devito.mpi.routines import (
    AllreduceCall,
    Gather,
    IrecvCall,
    IsendCall,
    Scatter,
    SendRecv,
)
from devito.passes.iet.engine import iet_pass
from devito.symbolics import DefFunction, Macro, retrieve_indexed
from devito.tools import as_tuple

from devitocomp_plugin.cuda.objects import device

__all__ = ['MPI_MODES', 'begin_rank', 'check_mode', 'is_message', 'lower_messages']

MPI_MODES = ('basic', 'diag', 'diag2', 'overlap', 'overlap2')

DIRECT = {True: 'DIRECT', False: 'STAGED', None: 'ASK'}
"""How messages travel, by the option `gpu-direct`."""


def check_mode(mpi, direct):
    """
    Raise an InvalidOperator unless the options `mpi` and `gpu-direct` make sense.
    """
    if mpi == 'full':
        raise InvalidOperator(
            "MPI mode 'full' is not supported by this language, as kernels cannot call "
            "MPI; use 'overlap2', in which they overlap with communication all the same"
        )
    if direct not in DIRECT:
        raise InvalidOperator(f'Illegal `gpu-direct={direct}`: True, False, or None to '
                              f'leave it to the MPI library')


def is_message(array, iet):
    """True for arrays that hold what is sent or received."""
    return isinstance(iet, SendRecv) and array._mem_local


def begin_rank(iet, deviceid, most, direct):
    """
    The call that begins a run on the device of this rank; None without a communicator.
    """
    comms = [i for i in iet.parameters if isinstance(i, MPICommObject)]
    # There may be no halo to be exchanged, but ranks share the devices all the same
    comms += [i.grid.distributor._obj_comm for i in iet.parameters
              if i.is_DiscreteFunction and i.grid is not None]
    if not comms:
        return None
    return Call('devitocomp_begin_rank', (
        deviceid, most, comms[0], Macro(f'DEVITOCOMP_{DIRECT[direct]}')
    ), retobj=device)


@iet_pass
def lower_messages(iet):
    """
    Let kernels pack and unpack messages, and MPI have them where it can take them.
    """
    mapper = {}
    for i in FindNodes(AllreduceCall).visit(iet):
        if any(j.function._mem_mapped for j in retrieve_indexed(i.arguments[1])):
            _, value, _, dtype, op, comm = i.arguments
            mapper[i] = DeviceCall('devitocomp_allreduce',
                                   (device, value, dtype, op, comm), writes=i.writes)

    sends = FindNodes(IsendCall).visit(iet)
    for i in [*sends, *FindNodes(IrecvCall).visit(iet)]:
        mapper[i] = wrap('devitocomp_for_mpi', i, *i.arguments[1:3])
    for i in FindNodes(Gather).visit(iet):
        # In the same function
        send, = sends
        mapper[i] = List(body=[
            wrap('devitocomp_packing', i, *send.arguments[1:3]),
            Call('devitocomp_packed', (device, send.arguments[0]))
        ])
    for i in FindNodes(Scatter).visit(iet):
        mapper[i] = wrap('devitocomp_unpacking', i)

    iet = Transformer(mapper).visit(iet)
    return Transformer(split_loops(iet)).visit(iet), {}


def wrap(name, call, *args):
    """Let a function of the runtime see the first argument of a call."""
    buffer, *others = call.arguments
    buffer = getattr(buffer, '_C_symbol', buffer)
    return Call(call.name, [DefFunction(name, (device, buffer, *args)), *others])


def split_loops(iet):
    """
    Let loops over messages first pack all of them, and then send them, so that the host
    waits for the device once.
    """
    mapper = {}
    for i in FindNodes(Iteration).visit(iet):
        nodes = as_tuple(i.nodes)
        if any(isinstance(j, Call) and j.name == 'MPI_Isend' for j in nodes):
            mapper[i] = List(body=[i._rebuild(nodes=j) for j in nodes])
    return mapper
