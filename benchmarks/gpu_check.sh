#!/usr/bin/env bash
# All that is to be checked on a machine with an NVIDIA GPU and CUDA's nvcc:
#
#   benchmarks/gpu_check.sh [folder for the output]
#
# Installs the package in an environment of its own, runs the tests, compares the results of
# generated CUDA with those of CPUs, and measures kernels against the bandwidth of the
# device. The last lines are a table of what went well; the exit status is 0 if all did.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:-$(mktemp -d)}
mkdir -p "$out"
unset DEVITOCOMP_EMULATE DEVITOCOMP_EMULATOR DEVITO_PLATFORM DEVITO_LANGUAGE DEVITO_ARCH
export DEVITOCOMP_CACHE="$out/cache" TMPDIR="$out/tmp" DEVITO_LOGGING=WARNING
mkdir -p "$TMPDIR"

if ! command -v nvcc >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
  echo "nvcc and a GPU are needed: $(command -v nvcc || echo no nvcc)," \
       "$(nvidia-smi -L 2>/dev/null || echo no GPU)" >&2
  exit 2
fi

table=() failed=0
# check NAME COMMAND...: run it, its output in a file, and remember how it went
check() {
  local name=$1 start=$SECONDS result=passed
  shift
  echo "== $name"
  if "$@" >"$out/$name.txt" 2>&1; then
    tail -n 3 "$out/$name.txt"
  else
    result=FAILED failed=1
    tail -n 30 "$out/$name.txt"
  fi
  table+=("$(printf '%-22s %-7s %5d s  %s' "$name" "$result" $((SECONDS - start)) \
             "$(tail -n 1 "$out/$name.txt" | cut -c1-90)")")
}

# SKIP_INSTALL: where the package is installed already, or there is no network
if [ -z "${SKIP_INSTALL:-}" ]; then
  python3 -m venv --system-site-packages "$out/venv"
  . "$out/venv/bin/activate"
  check install python -m pip install -q -e '.[test]'
fi

# Providers that execute on the device: one copies, the other compresses
check provider_dummy make -s -C providers/dummy test-cuda install-cuda \
  BUILD="$out/dummy_build" PREFIX="$out/dummy"
check provider_bitcomp make -s -C providers/bitcomp install VARIANT=cuda \
  BUILD="$out/bitcomp_build" PREFIX="$out/bitcomp"

# suite NAME ROOT RTOL: both acceptance suites, with the CUDA backend
suite() {
  local settings=(DEVITOCOMP_ROOT="$2" DEVITO_PLATFORM=nvidiaX DEVITO_LANGUAGE=cuda)
  [ -n "$3" ] && settings+=(DEVITOCOMP_RTOL="$3")
  for i in compressed composite; do
    check "${i}_$1" env "${settings[@]}" python -m pytest -q "test_${i}_funcs.py" \
      -k "devitocomp and not parallel"
  done
}

cd tests
check suite_cuda python -m pytest -q test_cuda.py test_cuda_snapshots.py
suite dummy "$out/dummy" ""
suite bitcomp_lossless "$out/bitcomp" 0
suite bitcomp "$out/bitcomp" 1e-4
for mode in noop advanced advanced-fsg; do
  check "same_as_cpu_$mode" python cuda_programs.py all "$mode"
done
if python -c 'import mpi4py' && command -v mpirun >/dev/null; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  for mode in basic diag2 overlap2; do
    check "mpi_$mode" env DEVITO_MPI=$mode timeout 600 mpirun --oversubscribe -n 2 python \
      cuda_mpi.py acoustic_3d elastic scalar_reductions tasking
  done
fi
cd ..
check traffic python benchmarks/cuda_traffic.py --space-order 4 8 16
check speed python benchmarks/cuda_speed.py --par-tile 4 4 32
check speed_blocks python benchmarks/cuda_speed.py --par-tile 2 4 32 --par-tile 4 8 16 \
  --par-tile 8 8 8 --par-tile 2 8 32 --par-tile 1 8 32 --par-tile 1 4 64
for root in dummy bitcomp; do
  check "snapshots_$root" env DEVITOCOMP_ROOT="$out/$root" \
    python benchmarks/cuda_snapshots.py --factor 4
done

echo
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
nvcc --version | tail -n 2 | head -n 1
printf '%s\n' "${table[@]}"
echo
grep -h 'copy on\|Gpoints' "$out"/speed*.txt
grep -v '^{' "$out"/snapshots_*.txt
exit "$failed"
