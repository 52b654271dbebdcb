/*
 * What the generated CUDA and HIP code calls, and the only place that spells either.
 *
 * Each run of an Operator has a `devitocomp_device`: the device, the stream on which it
 * computes (queue 0), streams for copies (queues 1, 2, ...), and the first error. After an
 * error all calls do nothing, so the host code runs to its end, and `devitocomp_end` makes
 * the error the value that the generated function returns.
 */
#ifndef DEVITOCOMP_DEVICE_H
#define DEVITOCOMP_DEVICE_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__HIP__) || defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define DEVITOCOMP_ON_HIP
#define DEVITOCOMP_API(name) hip##name
#else
#include <cuda_runtime.h>
#define DEVITOCOMP_API(name) cuda##name
#endif

typedef DEVITOCOMP_API(Error_t) devitocomp_error;
typedef DEVITOCOMP_API(Stream_t) devitocomp_stream;
typedef DEVITOCOMP_API(Event_t) devitocomp_event;

/* Added to the runtime's error codes, to tell them from Devito's own. */
enum { DEVITOCOMP_DEVICE_ERROR = 1000, DEVITOCOMP_TOO_LARGE = 999 };

struct devitocomp_section {
    devitocomp_event begin, end;
    double *seconds;
};

/* Memory of the host that MPI sends or receives, with a copy on the device. */
struct devitocomp_transit {
    void *data = nullptr;        /* the copy */
    size_t nbytes = 0;
    bool pinned = false, owned = false;
    size_t used = SIZE_MAX;      /* by work queued after so many `syncs` */
};

struct devitocomp_device {
    int id = 0;
    size_t most_elements = 0;    /* that the generated code can index in an array */
    std::atomic<int> status{0};
    std::mutex mutex;            /* of what follows: threads that copy share a device */
    std::string message;
    std::map<int, devitocomp_stream> queues;
    std::deque<devitocomp_section> sections;  /* begun, their times not yet added */
    std::vector<devitocomp_event> idle;       /* events to measure sections with */
    bool direct = false;                      /* MPI takes addresses on the device */
    size_t syncs = 0;                         /* how often queue 0 has been waited for */
    std::map<void *, devitocomp_transit> messages;
    std::map<size_t, std::vector<void *>> spare;  /* messages, by size */
};

/* Host memory with a copy on a device. */
struct devitocomp_resident {
    void *data;
    size_t nbytes;
    int device;
    int users;
};

struct devitocomp_residents {
    std::mutex mutex;
    std::map<const void *, devitocomp_resident> table;
};

/*
 * One for the process with GCC as the host compiler, whose linker unifies static variables
 * of inline functions across libraries. Otherwise one for each library, in which case
 * nothing may stay behind: see devitocomp_unmap.
 */
inline devitocomp_residents &devitocomp_all_residents()
{
    static devitocomp_residents residents;
    return residents;
}

/* ---- Errors ---- */

static std::string &devitocomp_last_message()
{
    static thread_local std::string message;
    return message;
}

/* What the last run of this thread failed with. */
extern "C" const char *devitocomp_device_message(void)
{
    return devitocomp_last_message().c_str();
}

static inline bool devitocomp_failed(devitocomp_device *device)
{
    return device->status.load(std::memory_order_acquire) != 0;
}

static void devitocomp_fail(devitocomp_device *device, int status, const std::string &why)
{
    std::lock_guard<std::mutex> lock(device->mutex);
    if (devitocomp_failed(device))
        return;
    device->message = why;
    device->status.store(status, std::memory_order_release);
}

/* True if the call went well. */
static bool devitocomp_check(devitocomp_device *device, devitocomp_error error,
                             const char *what)
{
    if (error == DEVITOCOMP_API(Success))
        return true;
    /* Errors that are not sticky would show up again in later, unrelated calls */
    (void)DEVITOCOMP_API(GetLastError)();
    devitocomp_fail(device, DEVITOCOMP_DEVICE_ERROR + (int)error,
                    std::string(what) + ": " + DEVITOCOMP_API(GetErrorString)(error) +
                    " (" + DEVITOCOMP_API(GetErrorName)(error) + ")");
    return false;
}

/* ---- Begin and end of a run ---- */

/* The stream of a queue, on the device of the run, which becomes the thread's. */
static devitocomp_stream devitocomp_queue(devitocomp_device *device, int id)
{
    devitocomp_stream stream = nullptr;
    devitocomp_error error = DEVITOCOMP_API(SetDevice)(device->id);
    if (error == DEVITOCOMP_API(Success)) {
        std::lock_guard<std::mutex> lock(device->mutex);
        auto found = device->queues.find(id);
        if (found != device->queues.end())
            return found->second;
        error = DEVITOCOMP_API(StreamCreateWithFlags)(&stream,
                                                      DEVITOCOMP_API(StreamNonBlocking));
        if (error == DEVITOCOMP_API(Success)) {
            device->queues[id] = stream;
            return stream;
        }
    }
    devitocomp_check(device, error, "creating a stream");
    return nullptr;
}

/*
 * Begin a run on device `id`, or on the thread's current one if -1. The generated code can
 * index up to `most_elements` in an array.
 */
static devitocomp_device *devitocomp_begin(int id, size_t most_elements)
{
    devitocomp_device *device = new devitocomp_device;
    int count = 0;
    device->most_elements = most_elements;
    if (!devitocomp_check(device, DEVITOCOMP_API(GetDeviceCount)(&count),
                          "looking for a device"))
        return device;
    if (id >= count || id < -1)
        devitocomp_fail(device, DEVITOCOMP_DEVICE_ERROR,
                        "there is no device " + std::to_string(id) + ", only " +
                        std::to_string(count) + "; see the argument deviceid and "
                        "DEVITO_DEVICEID");
    else if (id != -1)
        device->id = id;
    else
        devitocomp_check(device, DEVITOCOMP_API(GetDevice)(&device->id),
                         "asking for the current device");
    if (!devitocomp_failed(device))
        devitocomp_queue(device, 0);
    return device;
}

static void devitocomp_sync(devitocomp_device *device)
{
    if (devitocomp_failed(device))
        return;
    devitocomp_stream stream = devitocomp_queue(device, 0);
    if (!devitocomp_failed(device))
        devitocomp_check(device, DEVITOCOMP_API(StreamSynchronize)(stream),
                         "running kernels");
    device->syncs++;
}

#include "devitocomp_memory.h"
#include "devitocomp_kernel.h"
#if defined(DEVITOCOMP_MPI)
#include "devitocomp_mpi.h"
#endif

/* The value for the generated function to return, given the one it has by itself. */
static int devitocomp_end(devitocomp_device *device, int retval)
{
    devitocomp_sync(device);
    devitocomp_add_sections(device, 0);
    for (auto &i : device->queues) {
        devitocomp_check(device, DEVITOCOMP_API(StreamSynchronize)(i.second),
                         "finishing copies");
        devitocomp_check(device, DEVITOCOMP_API(StreamDestroy)(i.second),
                         "destroying a stream");
    }
    for (auto i : device->idle)
        devitocomp_check(device, DEVITOCOMP_API(EventDestroy)(i), "destroying an event");
#if defined(DEVITOCOMP_MPI)
    devitocomp_release_messages(device);
#endif
    devitocomp_last_message() = device->message;
    int status = device->status.load();
    delete device;
    return status ? status : retval;
}

#endif
