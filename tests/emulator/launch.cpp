/*
 * launch.cpp -- launches of kernels, and how their threads run.
 *
 * The threads of a kernel are run one by one, on a stack of their own, a fiber. A thread
 * that comes to __syncthreads is left there, and another fiber goes on with the next;
 * when all have come, they are resumed. Without __syncthreads one fiber does everything.
 */
#include "emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emul {

namespace {

constexpr size_t stack_bytes = size_t(1) << 20;
constexpr unsigned max_threads = 1024;
constexpr size_t max_shared = 48 << 10;

struct Trap {};

struct Fiber {
  ucontext_t context;
  uint3 thread;
  bool waiting;  // at a barrier, else idle
};

/* 0 to count - 1 in another order: a multiple of i, modulo count. */
class Permutation {
 public:
  explicit Permutation(uint64_t count) : count_(count) {
    if (settings().threads != Threads::shuffle || count < 2) return;
    shift_ = draw(count);
    do {
      factor_ = 1 + draw(std::min<uint64_t>(count - 1, 1 << 20));
    } while (std::gcd(factor_, count) != 1);
  }
  uint64_t operator()(uint64_t i) const {
    if (settings().threads == Threads::reverse) return count_ - 1 - i;
    return (i * factor_ + shift_) % count_;
  }

 private:
  uint64_t count_, factor_ = 1, shift_ = 0;
};

uint3 unravel(uint64_t i, dim3 extent) {
  return {unsigned(i % extent.x), unsigned(i / extent.x % extent.y),
          unsigned(i / extent.x / extent.y)};
}

uint64_t size(dim3 extent) { return uint64_t(extent.x) * extent.y * extent.z; }

class Grid {
 public:
  Grid(dim3 grid, dim3 block, cudaemul::Call &call)
      : blocks_(size(grid)), threads_(size(block)), call_(call), block_order_(blocks_),
        thread_order_(threads_) {
    gridDim = grid;
    blockDim = block;
  }

  void run() {
    active_ = this;
    while (!failed_) {
      if (begin_thread()) {
        resume(idle_.empty() ? new_fiber() : take_idle());
      } else if (waiting_.empty()) {
        break;
      } else {
        release_barrier();
      }
    }
    active_ = nullptr;
    /* What is left of a kernel that failed is lost, stacks and all. */
    if (failed_) set_sticky(cudaErrorLaunchFailure);
  }

  static void barrier() {
    if (!active_) fault("__syncthreads was called outside of a kernel");
    Fiber *fiber = active_->running_;
    fiber->thread = threadIdx;
    fiber->waiting = true;
    active_->suspended_++;
    swapcontext(&fiber->context, &scheduler_);
    active_->suspended_--;
    fiber->waiting = false;
    threadIdx = fiber->thread;
  }

 private:
  /* Steps to the next thread. Only those of one block exist at the same time. */
  bool begin_thread() {
    if (started_ == threads_ || block_ == 0) {
      if (block_ == blocks_ || suspended_) return false;
      blockIdx = unravel(block_order_(block_++), gridDim);
      started_ = 0;
    }
    threadIdx = unravel(thread_order_(started_++), blockDim);
    return true;
  }

  void run_threads() {
    do {
      try {
        call_();
      } catch (...) {
        failed_ = true;
      }
    } while (!failed_ && begin_thread());
  }

  static void fiber_main() {
    while (true) {
      Fiber *fiber = active_->running_;
      active_->run_threads();
      fiber->waiting = false;
      swapcontext(&fiber->context, &scheduler_);
    }
  }

  void resume(Fiber *fiber) {
    running_ = fiber;
    swapcontext(&scheduler_, &fiber->context);
    if (failed_) return;
    (fiber->waiting ? waiting_ : idle_).push_back(fiber);
  }

  void release_barrier() {
    if (waiting_.size() != threads_)
      fault("__syncthreads was reached by %zu of %zu threads of block (%u, %u, %u) of %s",
            waiting_.size(), size_t(threads_), blockIdx.x, blockIdx.y, blockIdx.z,
            current.describe().c_str());
    std::vector<Fiber *> released;
    released.swap(waiting_);
    const Permutation order(released.size());
    for (size_t i = 0; i < released.size() && !failed_; i++) resume(released[order(i)]);
  }

  Fiber *take_idle() {
    Fiber *fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  Fiber *new_fiber() {
    void *stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) fault("no memory for the threads of a kernel");
    mprotect(stack, 4096, PROT_NONE);
    Fiber *fiber = new Fiber{};
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    return fiber;
  }

  uint64_t blocks_, threads_, block_ = 0, started_ = 0;
  cudaemul::Call &call_;
  Permutation block_order_, thread_order_;
  size_t suspended_ = 0;
  bool failed_ = false;
  Fiber *running_ = nullptr;
  std::vector<Fiber *> waiting_;

  static Grid *active_;
  static ucontext_t scheduler_;
  static std::vector<Fiber *> &idle_;
};

Grid *Grid::active_;
ucontext_t Grid::scheduler_;
std::vector<Fiber *> &Grid::idle_ = *new std::vector<Fiber *>;

cudaError_t check(const cudaLaunchConfig_t &config, const std::string &name) {
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  if (!size(grid) || grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535)
    return refuse(cudaErrorInvalidConfiguration, "launch of %s: grid (%u, %u, %u)",
                  name.c_str(), grid.x, grid.y, grid.z);
  if (!size(block) || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      size(block) > max_threads)
    return refuse(cudaErrorInvalidConfiguration, "launch of %s: block (%u, %u, %u)",
                  name.c_str(), block.x, block.y, block.z);
  if (config.dynamicSmemBytes > max_shared)
    return refuse(cudaErrorInvalidValue, "launch of %s: %zu bytes of shared memory",
                  name.c_str(), config.dynamicSmemBytes);
  return cudaSuccess;
}

}  // namespace

}  // namespace emul

using namespace emul;

cudaError_t cudaemul::launch(const cudaLaunchConfig_t *config, const void *kernel,
                             Call *unmanaged, const void *const *pointers, int count) {
  std::shared_ptr<Call> call(unmanaged);
  Entry entry("cudaLaunchKernelEx");
  if (entry.refused != cudaSuccess) return note(entry.refused);
  if (!config) return refuse(cudaErrorInvalidValue, "launch: the configuration is NULL");
  if (!kernel) return refuse(cudaErrorInvalidDeviceFunction, "launch: no kernel");
  static std::map<const void *, std::string> &names =
      *new std::map<const void *, std::string>;
  std::string &name = names[kernel];
  if (name.empty()) name = name_of(kernel);
  const cudaError_t error = check(*config, name);
  if (error != cudaSuccess) return error;
  CUstream_st *stream = find_stream(config->stream);
  if (!stream || device_of(stream) != current_device())
    return refuse(cudaErrorInvalidResourceHandle, "launch of %s: stream %p", name.c_str(),
                  static_cast<void *>(config->stream));

  /* The kernel could access memory of the host here, but not on a device. */
  Operation operation{Running::kernel, name, nullptr};
  operation.device = current_device();
  for (int i = 0; i < count; i++) {
    Allocation *found = nullptr;
    const Where where = pointers[i] ? locate(pointers[i], 0, &found) : Where::device;
    if (where == Where::pageable)
      fault("argument %d of kernel %s points to memory of the host: %p", i, name.c_str(),
            pointers[i]);
    if (where == Where::pinned) operation.reads.push_back({found->base, found->bytes});
  }
  counters.launches++;
  const dim3 grid = config->gridDim, block = config->blockDim;
  operation.run = [grid, block, call] {
    counters.threads += size(grid) * size(block);
    const cudaError_t wanted = injected("kernel", cudaErrorLaunchFailure);
    if (wanted != cudaSuccess) return set_sticky(wanted);
    Grid(grid, block, *call).run();
  };
  enqueue(stream, std::move(operation));
  return note(sticky());
}

void __syncthreads() { Grid::barrier(); }

void __trap() { throw Trap(); }
