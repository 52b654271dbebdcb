/*
 * The memory of a device, for stores that keep payloads there: see devitocomp_store.h. Built
 * when it is first needed.
 */
#include "devitocomp_store.h"

#if defined(__HIP__) || defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define DEVITOCOMP_API(name) hip##name
#define KIND DEVITOCOMP_EXECUTION_HIP
#else
#include <cuda_runtime.h>
#define DEVITOCOMP_API(name) cuda##name
#define KIND DEVITOCOMP_EXECUTION_CUDA
#endif

#define ALIGNMENT 256

static bool check(DEVITOCOMP_API(Error_t) error)
{
    if (error == DEVITOCOMP_API(Success))
        return true;
    /* Reported here, hence not left behind for others to stumble upon */
    (void)DEVITOCOMP_API(GetLastError)();
    return false;
}

static void *allocate(size_t bytes)
{
    void *data = nullptr;
    return check(DEVITOCOMP_API(Malloc)(&data, bytes)) ? data : nullptr;
}

static void release(void *memory)
{
    check(DEVITOCOMP_API(Free)(memory));
}

static int copy(void *to, const void *from, size_t bytes)
{
    if (!bytes)
        return 1;
    /* Between places on one device it would return before it is done */
    return check(DEVITOCOMP_API(Memcpy)(to, from, bytes, DEVITOCOMP_API(MemcpyDefault)))
        && check(DEVITOCOMP_API(StreamSynchronize)(nullptr));
}

extern "C" DEVITOCOMP_EXPORT const devitocomp_memory_t *devitocomp_device_memory(void)
{
    static const devitocomp_memory_t memory = {
        KIND, "device memory", ALIGNMENT, allocate, release, copy
    };
    return &memory;
}
