"""From parallel loops to kernels, and their launches."""

from functools import cached_property

from devito.exceptions import InvalidOperator
from devito.ir import (
    Call,
    CallableBody,
    Definition,
    DeviceCall,
    DeviceFunction,
    DummyExpr,
    EntryFunction,
    Expression,
    FindNodes,
    FindSymbols,
    Forward,
    List,
    ParallelIteration,
    ParallelTree,
    Section,
    Transformer,
    derive_parameters,
)
from devito.passes import needs_transfer
from devito.passes.iet.engine import iet_pass
from devito.passes.iet.languages.openmp import OmpIteration, OmpRegion
from devito.passes.iet.parpragma import PragmaDeviceAwareTransformer
from devito.symbolics import DefFunction, IntDiv, ListInitializer, Macro

from devitocomp_plugin.cuda.host import check_host_code, find_serial_code, get_values
from devitocomp_plugin.cuda.language import DeviceBB
from devitocomp_plugin.cuda.messages import begin_rank, lower_messages
from devitocomp_plugin.cuda.objects import device
from devitocomp_plugin.cuda.reductions import check_races, lower_reductions

__all__ = ['DeviceLoop', 'DeviceParizer', 'GridLoop']


class DeviceLoop(ParallelIteration):

    """
    The outermost of `ncollapsed` perfectly nested loops that are to become a kernel.
    """

    def __init__(self, *args, ncollapsed=1, gpu_fit=None, tile=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.ncollapsed = ncollapsed

    @cached_property
    def collapsed(self):
        loops = [self]
        while len(loops) < self.ncollapsed:
            loops.append(loops[-1].nodes[0])
        return tuple(loops)


class GridLoop(ParallelIteration):
    """A loop in a kernel, which strides over all threads along one axis of the grid."""


class KernelBB(DeviceBB):
    DeviceIteration = DeviceLoop
    # Loops on the host are parallel if the user says `par-disabled=False`
    HostIteration = OmpIteration
    Region = OmpRegion


def assign_axes(loops):
    """
    Which loops of a nest are over an axis of the grid.

    The innermost dimension is contiguous in memory, so that it is along x. Not so in
    nests of indirect accesses: the outermost loop is over the points of a sparse function
    there, and inner ones over a few grid points around each.
    """
    if all(i.is_Affine for i in loops):
        loops = loops[::-1]
    return dict(zip(loops, 'xyz', strict=False))


def make_grid_loop(loop, axis, nodes):
    """The loop of one thread, made from the loop over all iterations."""
    low, high, step = loop.symbolic_min, loop.symbolic_max, loop.step
    first = low + step*DefFunction(f'devitocomp_first_{axis}')
    stride = step*DefFunction(f'devitocomp_stride_{axis}')
    # Further indices that advance along with the loop
    indices = []
    for d in loop.uindices:
        if not d.is_Incr:
            raise InvalidOperator(f'the index `{d}` of the parallel loop over '
                                  f'`{loop.dim}` is not supported by this language')
        offset = (loop.dim - low)/step if step != 1 else loop.dim - low
        indices.append(DummyExpr(d, d.symbolic_min + (d.symbolic_incr - d)*offset,
                                 init=True))
    return GridLoop((*indices, *nodes), loop.dim, (first, high, stride),
                    direction=Forward, properties=loop.properties)


def count(loop):
    """The number of iterations of a loop, not positive if there are none."""
    size = loop.symbolic_max - loop.symbolic_min
    return size + 1 if loop.step == 1 else IntDiv(size + loop.step, loop.step)


def check_private(loops):
    """
    Raise an InvalidOperator if threads need arrays of their own: there is one for all.
    """
    for i in loops:
        if not i.is_ParallelPrivate:
            continue
        for f in (e.write for e in FindNodes(Expression).visit(i)):
            if f.is_Array and not f._mem_stack and not i.dim._defines & set(f.dimensions):
                raise InvalidOperator(
                    f'the temporary `{f.name}` would be shared by the threads along '
                    f'`{i.dim.name}`; do not use the option `cire-block-temps`'
                )


class DeviceParizer(PragmaDeviceAwareTransformer):

    """
    Turns parallel loops over data on the device into kernels.

    Parameters
    ----------
    options : dict
        Those of the Operator, of which `block-shapes` and `gpu-direct` are ours.
    """

    langbb = KernelBB

    def __init__(self, options=None, **kwargs):
        super().__init__(options=options, **kwargs)
        self.block_shapes = options['block-shapes']
        self.gpu_direct = options['gpu-direct']
        self.nkernels = 0
        self.most = Macro({'int32': 'INT32_MAX'}.get(options['index-mode'], 'INT64_MAX'))

    def _make_reductions(self, partree):
        if not isinstance(partree.root, DeviceLoop):
            return super()._make_reductions(partree)
        # Lowered with the kernel
        return partree

    def _make_guard(self, parregion, *args):
        # The runtime launches nothing if there is nothing to do
        if isinstance(parregion, ParallelTree):
            return parregion
        return super()._make_guard(parregion, *args)

    def make_parallel(self, graph, **kwargs):
        super().make_parallel(graph, **kwargs)
        if self.uses_mpi:
            lower_messages(graph)
        self.make_kernels(graph, data_movs=graph.data_movs)

    @iet_pass
    def make_kernels(self, iet, data_movs=None):
        """
        Let kernels, and launches, take the place of all that computes on the device.
        """
        reads, writes = data_movs
        efuncs = []

        mapper = {}
        for tree in FindNodes(ParallelTree).visit(iet):
            if isinstance(tree.root, DeviceLoop):
                mapper[tree] = self._make_kernel(tree, efuncs)
        iet = Transformer(mapper).visit(iet)

        mapper = {i: self._make_serial_kernel(i, efuncs)
                  for i in find_serial_code(iet, self.gpu_fit)}
        iet = Transformer(mapper).visit(iet)

        iet = get_values(iet, writes, self.sregistry)
        check_host_code(iet, writes, self.gpu_fit)

        # Devito overlooks functions that occur in conditions only
        for i in efuncs:
            reads.update(f for f in FindSymbols().visit(i.body)
                         if needs_transfer(f, self.gpu_fit) and f not in writes)

        return iet, {'efuncs': efuncs, 'includes': [self.langbb['header']]}

    def _make_kernel(self, tree, efuncs):
        loops = tree.collapsed
        axes = assign_axes(loops)

        nodes = loops[-1].nodes
        for i in reversed(loops):
            if i in axes:
                nodes = (make_grid_loop(i, axes[i], nodes),)
            else:
                nodes = (ParallelIteration(nodes, i.dim, i.limits, direction=i.direction,
                                           properties=i.properties, uindices=i.uindices),)

        check_private(axes)
        atomic = any(i.is_ParallelAtomic for i in axes)
        body, before, after = lower_reductions(nodes, atomic, self.sregistry)
        check_races(FindNodes(GridLoop).visit(body))

        sizes = {axis: count(i) for i, axis in axes.items()}
        extents = [sizes.get(i, 1) for i in 'xyz']
        launch = self._launch(body, extents, efuncs, few=bool(after))
        return List(body=(*before, launch, *after)) if after else launch

    def _make_serial_kernel(self, node, efuncs):
        return self._launch(node, [1, 1, 1], efuncs)

    def _launch(self, body, extents, efuncs, few=False):
        # Sections are timed by the host, and so from around the launch
        sections = FindNodes(Section).visit(body)
        mapper = {i: List(body=i.body) for i in sections}
        body = Transformer(mapper, nested=True).visit(body)

        # Each thread has its own stack arrays, such as the weights of derivatives
        stacks = [Definition(i) for i in FindSymbols().visit(body)
                  if i.is_Array and i._mem_stack]
        body = CallableBody(body, stacks=stacks)
        parameters = [i.indexed if i.is_AbstractFunction else i
                      for i in derive_parameters(body, ordering='canonical')]

        block = self.block_shapes[min(self.nkernels, len(self.block_shapes) - 1)]
        self.nkernels += 1
        nthreads = block[0]*block[1]*block[2]
        name = self.sregistry.make_name(prefix='kernel')
        efuncs.append(DeviceFunction(
            name, body, parameters=parameters, prefix=('static', '__global__'),
            attributes=f'__launch_bounds__({nthreads})'
        ))
        launch = Call('devitocomp_launch_few' if few else 'devitocomp_launch', (
            device, ListInitializer(extents), ListInitializer(block),
            DeviceCall(name, parameters, is_indirect=True)
        ))
        return sections[0]._rebuild(body=launch) if sections else launch

    @iet_pass
    def initialize(self, iet, options=None):
        """
        Begin a run in the entry function.
        """
        if not isinstance(iet, EntryFunction):
            return iet, {}
        begin = Call('devitocomp_begin', (self.deviceid, self.most), retobj=device)
        headers = []
        if self.uses_mpi:
            begin = begin_rank(iet, self.deviceid, self.most, self.gpu_direct) or begin
            # Of the interface for C, as Devito's own code
            headers += [('DEVITOCOMP_MPI', '1'), ('OMPI_SKIP_MPICXX', '1')]
        iet = iet._rebuild(body=iet.body._rebuild(init=begin))
        return iet, {'headers': headers}
