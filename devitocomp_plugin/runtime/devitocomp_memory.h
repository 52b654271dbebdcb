/*
 * Memory on the device, and copies between it and the host. Part of devitocomp_device.h.
 */
#ifndef DEVITOCOMP_MEMORY_H
#define DEVITOCOMP_MEMORY_H

static void *devitocomp_alloc(devitocomp_device *device, size_t nbytes)
{
    void *data = nullptr;
    if (devitocomp_failed(device))
        return nullptr;
    devitocomp_queue(device, 0);
    const std::string what = "allocating " + std::to_string(nbytes) + " bytes on device " +
                             std::to_string(device->id);
    /* Never nothing, so that an address stands for success */
    if (!devitocomp_check(device, DEVITOCOMP_API(Malloc)(&data, nbytes ? nbytes : 1),
                          what.c_str()))
        return nullptr;
    return data;
}

/* True if the generated code can index that many elements. */
static bool devitocomp_fits(devitocomp_device *device, size_t elements)
{
    if (elements <= device->most_elements)
        return true;
    devitocomp_fail(device, DEVITOCOMP_TOO_LARGE,
                    "an array of " + std::to_string(elements) + " elements is too large for "
                    "32-bit indices; build the Operator with "
                    "opt=('advanced', {'index-mode': 'int64'})");
    return false;
}

/* A temporary of the generated code. */
static void *devitocomp_array(devitocomp_device *device, size_t elements, size_t element)
{
    if (!devitocomp_fits(device, elements))
        return nullptr;
    return devitocomp_alloc(device, elements * element);
}

static void devitocomp_free(devitocomp_device *device, void *data)
{
    /* It waits by itself, but would call an error in a kernel its own */
    devitocomp_sync(device);
    if (data != nullptr)
        devitocomp_check(device, DEVITOCOMP_API(Free)(data), "freeing device memory");
}

/* True if host memory could be pinned; copies work without, but take longer. */
static bool devitocomp_pin(void *data, size_t nbytes)
{
    if (DEVITOCOMP_API(HostRegister)(data, nbytes, DEVITOCOMP_API(HostRegisterDefault)) ==
            DEVITOCOMP_API(Success))
        return true;
    (void)DEVITOCOMP_API(GetLastError)();
    return false;
}

/* Zeroed host memory, pinned if possible. */
static void devitocomp_host_alloc(devitocomp_device *device, void **data, size_t alignment,
                                  size_t nbytes)
{
    if (posix_memalign(data, alignment, nbytes) != 0)
        throw std::bad_alloc();
    memset(*data, 0, nbytes);
    if (devitocomp_failed(device))
        return;
    devitocomp_queue(device, 0);
    devitocomp_pin(*data, nbytes);
}

/* By now its copy on the device is gone, and so are copies between the two. */
static void devitocomp_host_free(void *data)
{
    if (DEVITOCOMP_API(HostUnregister)(data) != DEVITOCOMP_API(Success))
        (void)DEVITOCOMP_API(GetLastError)();
    free(data);
}

enum devitocomp_content { DEVITOCOMP_COPY, DEVITOCOMP_ZERO, DEVITOCOMP_ANY };

/* The device's copy of host memory, found or made; null on failure. */
static void *devitocomp_present(devitocomp_device *device, const void *host, size_t nbytes,
                                size_t element, devitocomp_content content)
{
    if (devitocomp_failed(device) || !devitocomp_fits(device, nbytes / element))
        return nullptr;
    devitocomp_stream stream = devitocomp_queue(device, 0);
    devitocomp_residents &all = devitocomp_all_residents();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.table.find(host);
    if (found != all.table.end()) {
        devitocomp_resident &i = found->second;
        if (i.nbytes >= nbytes && i.device == device->id) {
            i.users++;
            if (content == DEVITOCOMP_ZERO)
                devitocomp_check(device, DEVITOCOMP_API(MemsetAsync)(i.data, 0, nbytes,
                                                                     stream), "zeroing");
            return i.data;
        }
        if (i.users != 0) {
            devitocomp_fail(device, DEVITOCOMP_DEVICE_ERROR, "an array is in use on device "
                            + std::to_string(i.device) + " or with another size");
            return nullptr;
        }
        devitocomp_free(device, i.data);
        all.table.erase(found);
    }
    void *data = devitocomp_alloc(device, nbytes);
    if (data == nullptr)
        return nullptr;
    if (content == DEVITOCOMP_COPY && nbytes != 0)
        devitocomp_check(device, DEVITOCOMP_API(MemcpyAsync)(
            data, host, nbytes, DEVITOCOMP_API(MemcpyHostToDevice), stream),
            "copying to the device");
    else if (content == DEVITOCOMP_ZERO)
        devitocomp_check(device, DEVITOCOMP_API(MemsetAsync)(data, 0, nbytes, stream),
                         "zeroing");
    all.table[host] = {data, nbytes, device->id, 1};
    return data;
}

/* Let `array->dmap` be the device's copy of `array->data`. */
template <typename A>
static void devitocomp_map(devitocomp_device *device, A *array, size_t element,
                           devitocomp_content content)
{
    array->dmap = devitocomp_present(device, array->data, array->nbytes, element, content);
}

static void devitocomp_leave(devitocomp_device *device, const void *host, bool remove)
{
#if defined(__clang__)
    remove = true;
#endif
    devitocomp_residents &all = devitocomp_all_residents();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.table.find(host);
    if (found == all.table.end())
        return;
    if (--found->second.users == 0 && (remove || devitocomp_failed(device))) {
        devitocomp_free(device, found->second.data);
        all.table.erase(found);
    }
}

/* Undo a devitocomp_map; unless `remove`, the copy stays for runs to come. */
template <typename A>
static void devitocomp_unmap(devitocomp_device *device, A *array, int remove)
{
    if (array->dmap != nullptr)
        devitocomp_leave(device, array->data, remove != 0);
    array->dmap = nullptr;
}

/* What is queued from now on waits for the kernels launched so far. */
static void devitocomp_follow(devitocomp_device *device, devitocomp_stream stream)
{
    devitocomp_event event;
    devitocomp_stream compute = devitocomp_queue(device, 0);
    if (stream == compute || devitocomp_failed(device) ||
        !devitocomp_check(device, DEVITOCOMP_API(EventCreateWithFlags)(
            &event, DEVITOCOMP_API(EventDisableTiming)), "creating an event"))
        return;
    if (devitocomp_check(device, DEVITOCOMP_API(EventRecord)(event, compute),
                         "recording an event"))
        devitocomp_check(device, DEVITOCOMP_API(StreamWaitEvent)(stream, event, 0),
                         "waiting for an event");
    devitocomp_check(device, DEVITOCOMP_API(EventDestroy)(event), "destroying an event");
}

static void devitocomp_copy(devitocomp_device *device, void *to, const void *from,
                            size_t nbytes, DEVITOCOMP_API(MemcpyKind) kind, int queue)
{
    if (devitocomp_failed(device) || nbytes == 0)
        return;
    devitocomp_stream stream = devitocomp_queue(device, queue);
    devitocomp_follow(device, stream);
    if (!devitocomp_failed(device))
        devitocomp_check(device, DEVITOCOMP_API(MemcpyAsync)(to, from, nbytes, kind, stream),
                         "copying between host and device");
}

static void devitocomp_wait(devitocomp_device *device, int queue)
{
    if (devitocomp_failed(device))
        return;
    devitocomp_stream stream = devitocomp_queue(device, queue);
    if (!devitocomp_failed(device))
        devitocomp_check(device, DEVITOCOMP_API(StreamSynchronize)(stream),
                         "waiting for a copy");
}

/* Part of an array, in bytes, to the host, in turn with what else is on the queue. */
template <typename A>
static void devitocomp_to_host_async(devitocomp_device *device, A *array, size_t begin,
                                     size_t nbytes, int queue)
{
    devitocomp_copy(device, (char *)array->data + begin, (char *)array->dmap + begin,
                    nbytes, DEVITOCOMP_API(MemcpyDeviceToHost), queue);
}

template <typename A>
static void devitocomp_to_device_async(devitocomp_device *device, A *array, size_t begin,
                                       size_t nbytes, int queue)
{
    devitocomp_copy(device, (char *)array->dmap + begin, (char *)array->data + begin,
                    nbytes, DEVITOCOMP_API(MemcpyHostToDevice), queue);
}

template <typename A>
static void devitocomp_to_host(devitocomp_device *device, A *array, size_t begin,
                               size_t nbytes)
{
    devitocomp_to_host_async(device, array, begin, nbytes, 0);
    devitocomp_wait(device, 0);
}

template <typename A>
static void devitocomp_to_device(devitocomp_device *device, A *array, size_t begin,
                                 size_t nbytes)
{
    devitocomp_to_device_async(device, array, begin, nbytes, 0);
    devitocomp_wait(device, 0);
}

/* One value: from the host, where it is to stay until it is back, and back. */
template <typename T>
static void devitocomp_put(devitocomp_device *device, T *to, const T &value)
{
    devitocomp_copy(device, to, &value, sizeof(T), DEVITOCOMP_API(MemcpyHostToDevice), 0);
}

template <typename T>
static void devitocomp_get(devitocomp_device *device, const T *from, T &value)
{
    devitocomp_copy(device, &value, from, sizeof(T), DEVITOCOMP_API(MemcpyDeviceToHost), 0);
    devitocomp_wait(device, 0);
}

template <typename T>
static T devitocomp_value(devitocomp_device *device, const T *from)
{
    T value = 0;
    devitocomp_get(device, from, value);
    return value;
}

#endif
