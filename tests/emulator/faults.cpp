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

/* Who did it, where the code is known; without memory from the heap, for the handler. */
void who(char *text, size_t size, const void *code = nullptr) {
  char function[160];
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
    if (!code) {
      snprintf(text, size, "the host");
      break;
    }
    name_code(code, function, sizeof(function));
    snprintf(text, size, "the host (no kernel is running), in %s", function);
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
  const int used = snprintf(text, size, "%s ", place);
  a.describe(text + used, size - used);
}

void handle(int signal, siginfo_t *info, void *context) {
  const char *at = static_cast<const char *>(info->si_addr);
  const bool of_device = in_arena(at);
  const bool work = current.what == Running::kernel || current.what == Running::copy;
  if (of_device && work && open_at(at)) return;
  if (!of_device && current.what != Running::kernel) {
    /* None of our business: as if this handler were not there. */
    sigaction(signal, &previous, nullptr);
    return;
  }
  const char *access = "access to";
  const void *code = nullptr;
#ifdef __x86_64__
  const auto &registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
  access = registers[REG_ERR] & 2 ? "write to" : "read of";
  code = reinterpret_cast<const void *>(registers[REG_RIP]);
#else
  (void)context;
#endif
  char place[224], by[320], text[720];
  where(place, sizeof(place), at);
  who(by, sizeof(by), code);
  if (of_device)
    snprintf(text, sizeof(text), "%sinvalid %s %p, %s, by %s\n", prefix, access,
             info->si_addr, place, by);
  else
    snprintf(text, sizeof(text), "%sinvalid %s %p, no memory of the device, by %s\n",
             prefix, access, info->si_addr, by);
  end(text);
}

}  // namespace

void Allocation::describe(char *text, size_t size) const {
  static const char *const kinds[] = {"device memory", "pinned memory",
                                      "registered memory"};
  char where[32] = "";
  if (settings().devices > 1) snprintf(where, sizeof(where), " of device %d", device);
  snprintf(text, size, "allocation %d (%zu bytes of %s%s%s)", id, bytes, kinds[kind],
           where, live ? "" : ", freed");
}

std::string Allocation::describe() const {
  char text[160];
  describe(text, sizeof(text));
  return text;
}

std::string Current::describe() const {
  char text[320];
  if (what == Running::kernel) return std::string("kernel ") + name;
  who(text, sizeof(text));
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

/* Again and again, as other libraries have handlers as well. */
void install_handler() {
  struct sigaction action = {}, now = {};
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == handle) return;
  previous = now;
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace emul
