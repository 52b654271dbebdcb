"""Creating plans: what has to work, and what has to be refused, and how."""
import ctypes as ct
import threading

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench, label
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.conformance.samples import small_shape
from devitocomp_plugin.conformance.tensors import a_tensor, tensors

INT64_MAX = 2**63 - 1


def refuse(t, what, statuses, tensor=None, execution=None, **kwargs):
    """Expect that no plan is created, and one of some statuses."""
    tensor = a_tensor(t) if tensor is None else tensor
    status, plan = t.driver.create(tensor, execution, **kwargs)
    if status == abi.OK:
        t.driver.destroy(plan)
    names = ' or '.join(statuses)
    t.expect(status in [getattr(abi, i) for i in statuses],
             f'{what}: {describe(status)}, not {names}')


@check('creates plans of every dtype and rank that it claims')
def claimed(t):
    for dtype, rank in tensors(t):
        with Bench(t.driver, dtype, small_shape(rank)):
            pass


@check('refuses dtypes and ranks that it does not claim')
def not_claimed(t):
    claims = t.driver.claims
    dtype, rank = tensors(t)[0]
    for other in set(abi.DTYPES.values()) - claims.dtypes:
        refuse(t, f'dtype {other}', ['UNSUPPORTED'],
               abi.make_tensor(other, small_shape(rank)))
    for other in set(range(1, abi.MAX_RANK + 1)) - claims.ranks:
        refuse(t, f'rank {other}', ['UNSUPPORTED'],
               abi.make_tensor(dtype, small_shape(other)))


@check('refuses dtypes and ranks that do not exist')
def not_existing(t):
    for dtype in (0, 31, 32, 33, 64, 2**32 - 1):
        tensor = a_tensor(t)
        tensor.dtype = dtype
        refuse(t, f'dtype {dtype}', ['INVALID_ARGUMENT', 'UNSUPPORTED'], tensor)
    for rank in (0, abi.MAX_RANK + 1, 31, 32, 34, 2**32 - 1):
        tensor = a_tensor(t)
        tensor.rank = rank
        refuse(t, f'rank {rank}', ['INVALID_ARGUMENT'], tensor)


@check('refuses extents and strides below 1')
def extents(t):
    wrong = ['INVALID_ARGUMENT']
    if 'strided' not in t.driver.claims.flags:
        wrong_strides = [*wrong, 'UNSUPPORTED']
    else:
        wrong_strides = wrong
    for value in (0, -1, -INT64_MAX - 1):
        for i in range(a_tensor(t).rank):
            tensor = a_tensor(t)
            tensor.dims[i] = value
            refuse(t, f'dims[{i}] = {value}', wrong, tensor)
            tensor = a_tensor(t)
            tensor.strides[i] = value
            refuse(t, f'strides[{i}] = {value}', wrong_strides, tensor)


@check('refuses tensors larger than any memory')
def overflow(t):
    statuses = ['INVALID_ARGUMENT', 'UNSUPPORTED', 'OUT_OF_MEMORY']
    for dtype, rank in tensors(t):
        for extent in (2**31, 2**32, 2**61, 2**62, INT64_MAX):
            if extent**rank < 2**61:
                continue
            tensor = abi.make_tensor(dtype, (1,)*rank)
            total = 1
            for i in reversed(range(rank)):
                tensor.dims[i], tensor.strides[i] = extent, total
                # What a caller with the same overflow would ask for
                total = total*extent % 2**63 or 1
            refuse(t, label(dtype, tensor.dims[:rank]), statuses, tensor)


@check('refuses another ABI version with VERSION_MISMATCH, whatever else is wrong')
def version(t):
    for number in (0, abi.ABI_VERSION + 1, 2**32 - 1):
        refuse(t, f'abi_version {number}', ['VERSION_MISMATCH'], version=number)
        tensor = a_tensor(t)
        tensor.struct_size = 0
        refuse(t, f'abi_version {number} and a short tensor', ['VERSION_MISMATCH'],
               tensor, version=number)


@check('refuses arguments that are NULL')
def null(t):
    call, tensor, execution = t.driver.call, a_tensor(t), t.driver.execution()
    plan = ct.c_void_p(1)
    arguments = {
        'tensor': (None, ct.byref(execution), None, ct.byref(plan)),
        'exec': (ct.byref(tensor), None, None, ct.byref(plan)),
        'plan': (ct.byref(tensor), ct.byref(execution), None, None),
    }
    for name, values in arguments.items():
        status = call('plan_create', None, abi.ABI_VERSION, *values)
        t.expect(status == abi.INVALID_ARGUMENT,
                 f'{name} NULL: {describe(status)}, not INVALID_ARGUMENT')


@check('refuses structures shorter than those of this version')
def short(t):
    for size in (0, 4, ct.sizeof(abi.Tensor) - 8):
        tensor = a_tensor(t)
        tensor.struct_size = size
        refuse(t, f'tensor of size {size}', ['INVALID_ARGUMENT'], tensor)
    for size in (0, 4, ct.sizeof(abi.Execution) - 8):
        execution = t.driver.execution()
        execution.struct_size = size
        refuse(t, f'exec of size {size}', ['INVALID_ARGUMENT'], execution=execution)


@check('takes structures longer than those of this version')
def longer(t):
    tensor, execution = a_tensor(t), t.driver.execution()
    room = [bytearray(bytes(i) + bytes(64)) for i in (tensor, execution)]
    tensor = abi.Tensor.from_buffer(room[0])
    execution = abi.Execution.from_buffer(room[1])
    tensor.struct_size += 64
    execution.struct_size += 64
    status, plan = t.driver.create(tensor, execution)
    if t.expect(status == abi.OK, f'{t.driver.reason(status)}'):
        t.driver.destroy(plan)


@check('refuses reserved fields that are not zero')
def reserved(t):
    tensor, execution = a_tensor(t), t.driver.execution()
    tensor.reserved = execution.reserved = 1
    refuse(t, 'tensor.reserved = 1', ['INVALID_ARGUMENT'], tensor)
    refuse(t, 'exec.reserved = 1', ['INVALID_ARGUMENT'], execution=execution)


@check('refuses kinds of execution that it does not claim or that do not exist')
def kinds(t):
    offered = t.driver.claims.execution_kinds
    for code in (0, 1, 2, 3, 4, 31, 32, 33, 2**32 - 1):
        if abi.EXECUTION_KINDS.get(code) in offered:
            continue
        execution = t.driver.execution()
        execution.kind, execution.stream = code, None
        allowed = ['UNSUPPORTED']
        if code not in abi.EXECUTION_KINDS:
            allowed.append('INVALID_ARGUMENT')
        refuse(t, f'kind {code}', allowed, execution=execution)


@check('sets *plan to NULL when it creates none')
def no_plan(t):
    tensor, execution = a_tensor(t), t.driver.execution()
    tensor.rank = abi.MAX_RANK + 1
    execution.kind = 31
    for what, arguments in {
        'a wrong rank': {'tensor': tensor},
        'a wrong kind': {'tensor': a_tensor(t), 'execution': execution},
        'a wrong version': {'tensor': a_tensor(t), 'version': abi.ABI_VERSION + 1},
    }.items():
        status, plan = t.driver.create(**arguments)
        if status != abi.OK:
            t.expect(plan is None, f'after {what}, *plan is {plan or 0:#x}')


@check('refuses strides that are not contiguous, as it does not claim STRIDED')
def not_strided(t):
    if 'strided' in t.driver.claims.flags:
        raise NotApplicable('it claims STRIDED; group `strides` looks at that')
    for dtype, rank in tensors(t):
        shape = small_shape(rank)
        dense = abi.contiguous_strides(shape)
        cases = {tuple(2*i for i in dense)}
        if rank > 1:
            cases |= {dense[::-1], (dense[0] + 3, *dense[1:])}
        for strides in cases - {dense}:
            refuse(t, label(dtype, shape, None, strides), ['UNSUPPORTED'],
                   abi.make_tensor(dtype, shape, strides))


@check('keeps messages of plan creation per thread, until the next call')
def messages(t):
    wrong_rank, wrong_dtype = a_tensor(t), a_tensor(t)
    wrong_rank.rank = abi.MAX_RANK + 1
    wrong_dtype.dtype = 31
    t.driver.create(wrong_dtype)
    first, others = t.driver.message(), []

    def other():
        others.append(t.driver.message())
        t.driver.create(wrong_rank)
        others.append(t.driver.message())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    t.expect(others[0] == '', f'in a new thread the message is {others[0]!r}')
    t.expect(others[1] != first, f'the message of another failure is {first!r} again')
    t.expect(t.driver.message() == first,
             f'the message was {first!r} and, after a failure in another thread, is '
             f'{t.driver.message()!r}')


@check('ignores the destruction of NULL')
def destroy_null(t):
    t.driver.destroy(None)
