"""
Runs the programs of test_emulator: correct ones in all orders, where they must succeed;
broken ones to see that this shows.
"""
import itertools
import os
import re
import subprocess
import sys

PROGRAM = sys.argv[1]
FAULT = 86

SETTINGS = {
    'out_of_memory': {'CUDAEMUL_MEMORY': '1048576'},
    'injected': {'CUDAEMUL_FAIL': 'cudaMalloc:2'},
    'devices': {'CUDAEMUL_DEVICES': '2'},
    'leaks': {'CUDAEMUL_REPORT': '1'},
    'wait_for_pageable': {'CUDAEMUL_PAGEABLE': 'direct'},
}

# Orders of streams and of threads; more seeds where they matter
CORRECT = [{'ORDER': i, 'THREADS': j} for i, j in itertools.product(
    ['lazy', 'eager'], ['forward', 'reverse', 'shuffle'])]
SEEDS = [{'ORDER': 'random', 'THREADS': 'shuffle', 'SEED': str(i)} for i in range(1, 11)]
BEFORE = [{'GUARD': 'before'}]

# Programs whose result is wrong when broken, and in which order it always is. What lacks
# only an event, or a stream, also shows for some seed
LAZY, EAGER = {'ORDER': 'lazy'}, {'ORDER': 'eager'}
WRONG = {
    'synchronize_before_reading': LAZY,
    'synchronize_right_stream': LAZY,
    'copy_in_right_stream': LAZY,
    'wait_for_event': LAZY,
    'record_before_waiting': LAZY,
    'wait_before_overwriting': LAZY,
    'fill_before_copying': EAGER,
    'keep_pinned_source': LAZY,
    'wait_for_pageable': LAZY,
    'blocking_stream': LAZY,
    'after_default_stream': LAZY,
    'initialize': LAZY,
}

# Programs that end with a fault when broken, and how it is described
DEVICE = r'allocation 1 \(4000 bytes of device memory\)'
HOST = r'by the host \(no kernel is running\), in .*'
FAULTS = {
    'keep_host_out': (rf'read of \S+, at offset 28 of {DEVICE}, {HOST}keep_host_out', {}),
    'keep_host_from_writing':
        (rf'write to \S+, at offset 3996 of {DEVICE}, {HOST}keep_host_from', {}),
    'stay_before_end':
        (rf'write to \S+, 96 bytes after the end of {DEVICE}, by kernel fill, '
         r'block \(1, 0, 0\), thread \(0, 0, 0\)', {}),
    'stay_close_before_end':
        (rf'write .*, 0 bytes after the end of {DEVICE}, by kernel fill', {}),
    'stay_after_begin':
        (r'read of \S+, 4000 bytes before allocation 2 .*, by kernel shift', {}),
    'stay_close_after_begin':
        (rf'write to \S+, 4 bytes before {DEVICE}, by kernel fill', BEFORE[0]),
    'stay_in_pinned':
        (r'write .*, 4 bytes after the end of .* pinned memory\), by the host or', {}),
    'free_last':
        (r'read of \S+, at offset 0 of .* device memory, freed\), by kernel add', {}),
    'free_pinned_last':
        (rf'read of \S+, at offset 3996 of .* pinned memory, freed\), {HOST}free', {}),
    'pass_device_pointer':
        (r'argument 0 of kernel fill points to memory of the host', {}),
    'pass_some_pointer':
        (r'write to \S+, no memory of the device, by kernel fill, block', {}),
    'whole_blocks':
        (r'__syncthreads was reached by 2 of 64 threads .* of kernel reverse', {}),
    'devices': (r'of device memory of device 0\), by kernel fill', {}),
}

# Programs with a fault that shows in some orders only
LATE = {
    'unregister_last': r'cudaHostUnregister: queued work uses allocation 2 \(4000 bytes',
}

checks = failures = 0


def check(passed, *what):
    global checks, failures
    checks += 1
    if not passed:
        failures += 1
        print('failed:', *what)
    return passed


def run(*args, **settings):
    env = {k: v for k, v in os.environ.items() if not k.startswith('CUDAEMUL_')}
    env.update({f'CUDAEMUL_{k}': v for k, v in settings.items()})
    env.update(SETTINGS.get(args[0], {}) if args else {})
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, env=env,
                          timeout=60)


names = run().stdout.split()
check(set(WRONG) | set(FAULTS) <= set(names), 'names of programs')

for name in names:
    for settings in CORRECT + SEEDS[:3] + BEFORE:
        done = run(name, **settings)
        check(done.returncode == 0, name, settings, done.stdout, done.stderr)

for name, settings in WRONG.items():
    done = run(name, 'broken', **settings)
    check(done.returncode == 1 and 'wrong' in done.stdout, name, 'broken', done)
    if settings is LAZY:
        codes = {run(name, 'broken', **i).returncode for i in SEEDS}
        check(1 in codes, name, 'broken, in random order', codes)

for name, (message, settings) in FAULTS.items():
    for order in ('lazy', 'eager', 'random'):
        done = run(name, 'broken', ORDER=order, **settings)
        check(done.returncode == FAULT and
              re.search('^emulated CUDA: .*' + message, done.stderr, re.MULTILINE),
              name, 'broken', order, done.returncode, done.stderr)

for name, message in LATE.items():
    done = run(name, 'broken', **LAZY)
    check(done.returncode == FAULT and re.search(message, done.stderr), name, done)

# Without its own setting, the byte before an array is found by its canary
done = run('stay_close_after_begin', 'broken')
check(done.returncode == FAULT, 'stay_close_after_begin', done)

report = run('leaks', 'broken').stderr
for i in ['launches: 1', 'peak_bytes: 4000', 'leaked: allocation 1 (4000 bytes',
          'leaked: 1 streams', 'leaked: 1 events', 'never done: 1 pieces']:
    check(i in report, 'the report lacks', i, report)
check('leaked' not in run('leaks').stderr, 'leaks')

check('emulated' in run('properties').stdout, 'name of the device')
explained = run('errors', VERBOSE='1').stderr
check('16 bytes at offset 3988 of allocation 1 (4000 bytes' in explained, explained)
wrong = run('pipeline', ORDER='sideways')
check(wrong.returncode == FAULT and 'CUDAEMUL_ORDER is sideways' in wrong.stderr, wrong)

print(f'emulator: {checks} checks, {failures} failed')
sys.exit(failures != 0)
