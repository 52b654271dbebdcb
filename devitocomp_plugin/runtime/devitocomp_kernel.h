/*
 * Launching kernels, timing sections of them, and what kernels call. Part of
 * devitocomp_device.h.
 */
#ifndef DEVITOCOMP_KERNEL_H
#define DEVITOCOMP_KERNEL_H

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

/* ---- Launching ---- */

/* Along x, y and z. */
struct devitocomp_extents {
    long long x, y, z;
};

/*
 * The threads of a block and the blocks of a grid for `n` iterations. Threads that have
 * nothing to do along one axis are moved to another one. No more than `most` blocks: the
 * loops in kernels have the stride of the grid.
 */
static bool devitocomp_shape(devitocomp_extents n, devitocomp_extents block, long long most,
                             dim3 *threads, dim3 *blocks)
{
    if (n.x <= 0 || n.y <= 0 || n.z <= 0)
        return false;
    const long long all = block.x * block.y * block.z;
    devitocomp_extents b = {std::min(block.x, n.x), std::min(block.y, n.y),
                            std::min(block.z, n.z)};
    while (2 * b.x * b.y * b.z <= all && b.x < n.x && b.x < 512)
        b.x *= 2;
    while (2 * b.x * b.y * b.z <= all && b.y < n.y && b.y < 512)
        b.y *= 2;
    while (2 * b.x * b.y * b.z <= all && b.z < n.z && b.z < 32)
        b.z *= 2;
    devitocomp_extents g = {std::min((n.x + b.x - 1) / b.x, 0x7fffffffLL),
                            std::min((n.y + b.y - 1) / b.y, 65535LL),
                            std::min((n.z + b.z - 1) / b.z, 65535LL)};
    g.z = std::min(g.z, std::max(1LL, most / g.x / g.y));
    g.y = std::min(g.y, std::max(1LL, most / g.x / g.z));
    g.x = std::min(g.x, std::max(1LL, most / g.y / g.z));
    *threads = dim3((unsigned)b.x, (unsigned)b.y, (unsigned)b.z);
    *blocks = dim3((unsigned)g.x, (unsigned)g.y, (unsigned)g.z);
    return true;
}

template <typename... P, typename... A>
static void devitocomp_launch_most(devitocomp_device *device, devitocomp_extents n,
                                   devitocomp_extents block, long long most,
                                   void (*kernel)(P...), A... arguments)
{
    dim3 threads, blocks;
    if (devitocomp_failed(device) || !devitocomp_shape(n, block, most, &threads, &blocks))
        return;
    devitocomp_stream stream = devitocomp_queue(device, 0);
    if (devitocomp_failed(device))
        return;
#if defined(DEVITOCOMP_ON_HIP)
    hipLaunchKernelGGL(kernel, blocks, threads, 0, stream, static_cast<P>(arguments)...);
    devitocomp_check(device, hipGetLastError(), "launching a kernel");
#else
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = stream;
    devitocomp_check(device, cudaLaunchKernelEx(&config, kernel,
                                                static_cast<P>(arguments)...),
                     "launching a kernel");
#endif
}

/* Launch a kernel for `n` iterations in blocks of about `block` threads. */
template <typename... P, typename... A>
static void devitocomp_launch(devitocomp_device *device, devitocomp_extents n,
                              devitocomp_extents block, void (*kernel)(P...),
                              A... arguments)
{
    devitocomp_launch_most(device, n, block, INT64_MAX, kernel, arguments...);
}

/* The same in few blocks, for kernels in which each thread ends with an atomic. */
template <typename... P, typename... A>
static void devitocomp_launch_few(devitocomp_device *device, devitocomp_extents n,
                                  devitocomp_extents block, void (*kernel)(P...),
                                  A... arguments)
{
    devitocomp_launch_most(device, n, block, 512, kernel, arguments...);
}

/* ---- Sections ---- */

/* Add the times of all sections but the `pending` last ones to where they belong. */
static void devitocomp_add_sections(devitocomp_device *device, size_t pending)
{
    while (device->sections.size() > pending) {
        devitocomp_section i = device->sections.front();
        float milliseconds = 0;
        device->sections.pop_front();
        if (!devitocomp_failed(device) &&
            devitocomp_check(device, DEVITOCOMP_API(EventSynchronize)(i.end),
                             "running kernels") &&
            devitocomp_check(device, DEVITOCOMP_API(EventElapsedTime)(
                &milliseconds, i.begin, i.end), "measuring time"))
            *i.seconds += 1e-3 * milliseconds;
        device->idle.push_back(i.begin);
        device->idle.push_back(i.end);
    }
}

/* Record an event on the stream of kernels. */
static bool devitocomp_tick(devitocomp_device *device, devitocomp_event *event)
{
    devitocomp_stream stream = devitocomp_queue(device, 0);
    if (devitocomp_failed(device))
        return false;
    if (!device->idle.empty()) {
        *event = device->idle.back();
        device->idle.pop_back();
    } else if (!devitocomp_check(device, DEVITOCOMP_API(EventCreate)(event),
                                 "creating an event")) {
        return false;
    }
    if (devitocomp_check(device, DEVITOCOMP_API(EventRecord)(*event, stream),
                         "recording an event"))
        return true;
    device->idle.push_back(*event);
    return false;
}

/*
 * Measures by events on the stream. The host waits for old ones only, so that it stays ahead
 * of the device.
 */
struct devitocomp_timer {
    devitocomp_device *device;
    devitocomp_section section;
    bool begun;

    explicit devitocomp_timer(devitocomp_device *device) : device(device), section()
    {
        begun = devitocomp_tick(device, &section.begin);
    }

    void stop(double *seconds)
    {
        section.seconds = seconds;
        if (begun && devitocomp_tick(device, &section.end))
            device->sections.push_back(section);
        else if (begun)
            device->idle.push_back(section.begin);
        devitocomp_add_sections(device, 64);
    }
};

/* ---- In kernels: the loops of a thread ---- */

#define DEVITOCOMP_AXIS(i)                                                    \
    static __device__ inline int devitocomp_first_##i()                       \
    {                                                                         \
        return (int)(blockIdx.i * blockDim.i + threadIdx.i);                  \
    }                                                                         \
    static __device__ inline int devitocomp_stride_##i()                      \
    {                                                                         \
        return (int)(gridDim.i * blockDim.i);                                 \
    }

DEVITOCOMP_AXIS(x)
DEVITOCOMP_AXIS(y)
DEVITOCOMP_AXIS(z)

/* ---- In kernels: reductions ---- */

template <typename T, typename V>
static __device__ inline void devitocomp_atomic_add(T *to, V value)
{
    atomicAdd(to, static_cast<T>(value));
}

template <typename V>
static __device__ inline void devitocomp_atomic_add(long long *to, V value)
{
    atomicAdd((unsigned long long *)to, (unsigned long long)(long long)value);
}

template <typename V>
static __device__ inline void devitocomp_atomic_add(long *to, V value)
{
    devitocomp_atomic_add((long long *)to, value);
}

/* An integer of the size of T, on which there is an atomic compare-and-swap. */
template <size_t> struct devitocomp_bits;
template <> struct devitocomp_bits<4> { typedef unsigned int type; };
template <> struct devitocomp_bits<8> { typedef unsigned long long type; };

/* Replace `*to` by `value` for as long as that is `better`. */
template <typename T, typename F>
static __device__ inline void devitocomp_atomic_replace(T *to, T value, F better)
{
    typedef typename devitocomp_bits<sizeof(T)>::type bits;
    bits seen = *(volatile bits *)to;
    for (;;) {
        T old;
        bits wanted;
        memcpy(&old, &seen, sizeof(T));
        memcpy(&wanted, &value, sizeof(T));
        if (!better(value, old))
            return;
        bits found = atomicCAS((bits *)to, seen, wanted);
        if (found == seen)
            return;
        seen = found;
    }
}

template <typename T> struct devitocomp_less {
    __device__ bool operator()(T a, T b) const { return a < b; }
};

template <typename T> struct devitocomp_more {
    __device__ bool operator()(T a, T b) const { return a > b; }
};

template <typename T, typename V>
static __device__ inline void devitocomp_atomic_min(T *to, V value)
{
    devitocomp_atomic_replace(to, static_cast<T>(value), devitocomp_less<T>());
}

template <typename T, typename V>
static __device__ inline void devitocomp_atomic_max(T *to, V value)
{
    devitocomp_atomic_replace(to, static_cast<T>(value), devitocomp_more<T>());
}

#endif
