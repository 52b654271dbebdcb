/*
 * faults.cpp -- accesses that a device, or the host, would not survive.
 */
#include "emulator.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emul {

thread_local Current current = {Running::nothing, nullptr};

namespace {

struct sigaction previous;

[[noreturn]] void end(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(fault_status + 1);
  _exit(fault_status);
}

/* Who did it; without memory from the heap, for the handler. */
void who(char *text, size_t size) {
  switch (current.what) {
  case Running::kernel:
    snprintf(text, size, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
             current.name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
             threadIdx.z);
    break;
  case Running::copy:
    snprintf(text, size, "%s", current.name);
    break;
  case Running::host_function:
    snprintf(text, size, "a function of the host in a stream");
    break;
  default:
    snprintf(text, size, "the host (no kernel is running)");
  }
}

/* Where at is, relative to the allocation that is closest. */
void where(char *text, size_t size, const char *at) {
  const Allocation *nearest = nullptr;
  size_t distance = ~size_t(0);
  for (const Allocation *a = newest_allocation; a; a = a->older) {
    const size_t d = at < a->base ? size_t(a->base - at)
                     : at >= a->base + a->bytes ? size_t(at - (a->base + a->bytes)) : 0;
    if (a->kind != Allocation::registered && d < distance) {
      nearest = a;
      distance = d;
    }
  }
  if (!nearest) {
    snprintf(text, size, "far from any allocation");
    return;
  }
  const Allocation &a = *nearest;
  char place[64];
  if (at < a.base)
    snprintf(place, sizeof(place), "%td bytes before", a.base - at);
  else if (at >= a.base + a.bytes)
    snprintf(place, sizeof(place), "%td bytes after the end of",
             at - (a.base + a.bytes));
  else
    snprintf(place, sizeof(place), "at offset %td of", at - a.base);
  snprintf(text, size, "%s allocation %d (%zu bytes of %s%s)", place, a.id, a.bytes,
           kind_name(a.kind), a.live ? "" : ", freed");
}

void handle(int signal, siginfo_t *info, void *context) {
  const char *at = static_cast<const char *>(info->si_addr);
  const bool of_device = in_arena(at);
  if (!of_device && current.what != Running::kernel) {
    /* None of our business: as if this handler were not there. */
    sigaction(signal, &previous, nullptr);
    return;
  }
  const char *access = "access to";
#ifdef __x86_64__
  const auto &registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
  access = registers[REG_ERR] & 2 ? "write to" : "read of";
#else
  (void)context;
#endif
  char place[160], by[320], text[640];
  where(place, sizeof(place), at);
  who(by, sizeof(by));
  if (of_device)
    snprintf(text, sizeof(text), "%sinvalid %s %p, %s, by %s\n", prefix, access,
             info->si_addr, place, by);
  else
    snprintf(text, sizeof(text), "%sinvalid %s %p, no memory of the device, by %s\n",
             prefix, access, info->si_addr, by);
  end(text);
}

}  // namespace

const char *kind_name(Allocation::Kind kind) {
  static const char *const names[] = {"device memory", "pinned memory",
                                      "registered memory"};
  return names[kind];
}

std::string Current::describe() const {
  char text[320];
  who(text, sizeof(text));
  if (what == Running::kernel) return std::string("kernel ") + name;
  return text;
}

void fault(const char *format, ...) {
  char text[1024];
  int used = snprintf(text, sizeof(text), "%s", prefix);
  va_list arguments;
  va_start(arguments, format);
  used += vsnprintf(text + used, sizeof(text) - used - 1, format, arguments);
  va_end(arguments);
  if (used > int(sizeof(text)) - 2) used = sizeof(text) - 2;
  strcpy(text + used, "\n");
  fflush(stdout);
  end(text);
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

}  // namespace emul
