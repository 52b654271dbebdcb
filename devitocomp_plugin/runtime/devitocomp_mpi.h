/*
 * Devices of ranks, and messages between them. Part of devitocomp_device.h where there is
 * MPI.
 *
 * A message is known by its memory on the host. It has memory on the device as well, where
 * kernels pack and unpack it. MPI sends and receives there if it can, otherwise on the host,
 * with copies in between. If a run has failed, the host's memory is exchanged as it is: the
 * other ranks shall not wait for ever.
 */
#ifndef DEVITOCOMP_MPI_H
#define DEVITOCOMP_MPI_H

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

/* ---- Ranks and devices ---- */

/* How messages travel: between devices, by way of the host, or as MPI can. */
enum devitocomp_way { DEVITOCOMP_DIRECT, DEVITOCOMP_STAGED, DEVITOCOMP_ASK };

/* True if the MPI library says that it takes addresses on the device. */
static bool devitocomp_mpi_is_aware(void)
{
    int aware = 0;
#if defined(DEVITOCOMP_ON_HIP)
#if defined(MPIX_GPU_SUPPORT_HIP)
    MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &aware);
#elif defined(MPIX_ROCM_AWARE_SUPPORT)
    aware = MPIX_Query_rocm_support();
#endif
#else
#if defined(MPIX_GPU_SUPPORT_CUDA)
    MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &aware);
#elif defined(MPIX_CUDA_AWARE_SUPPORT)
    aware = MPIX_Query_cuda_support();
#endif
#endif
    return aware != 0;
}

/*
 * The number of this rank among those of its node. What the launcher says counts all of
 * them, also those that are not in `comm`.
 */
static int devitocomp_local_rank(MPI_Comm comm)
{
    for (const char *name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                             "MV2_COMM_WORLD_LOCAL_RANK"})
        if (const char *value = getenv(name))
            return atoi(value);
    MPI_Comm node;
    int rank = 0;
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_free(&node);
    return rank;
}

/* Begin a run on device `id`, or if that is -1 on one that is this rank's. */
static devitocomp_device *devitocomp_begin_rank(int id, size_t most_elements, MPI_Comm comm,
                                                devitocomp_way way)
{
    int count = 0;
    if (id == -1) {
        const int rank = devitocomp_local_rank(comm);
        if (DEVITOCOMP_API(GetDeviceCount)(&count) == DEVITOCOMP_API(Success) && count > 0)
            id = rank % count;
    }
    devitocomp_device *device = devitocomp_begin(id, most_elements);
    device->direct = way == DEVITOCOMP_ASK ? devitocomp_mpi_is_aware()
                                           : way == DEVITOCOMP_DIRECT;
    return device;
}

/* ---- Messages ---- */

/* Memory on the host for a message. */
static void *devitocomp_buffer(devitocomp_device *device, size_t nbytes)
{
    std::vector<void *> &spare = device->spare[nbytes];
    void *host = nullptr;
    if (!spare.empty()) {
        host = spare.back();
        spare.pop_back();
        return host;
    }
    /* Pages of its own, which can be pinned */
    if (posix_memalign(&host, 4096, nbytes ? nbytes : 1) != 0)
        throw std::bad_alloc();
    device->messages[host].nbytes = nbytes;
    device->messages[host].owned = true;
    return host;
}

/* Keeps it for the next message of that size. */
static void devitocomp_buffer_free(devitocomp_device *device, void *host)
{
    device->spare[device->messages[host].nbytes].push_back(host);
}

static devitocomp_transit &devitocomp_find_message(devitocomp_device *device, void *host,
                                                   int count, MPI_Datatype type)
{
    int size = 0;
    MPI_Type_size(type, &size);
    devitocomp_transit &message = device->messages[host];
    message.nbytes = (size_t)count * size;
    if (message.data != nullptr || devitocomp_failed(device))
        return message;
    message.data = devitocomp_alloc(device, message.nbytes);
    if (!device->direct)
        message.pinned = devitocomp_pin(host, message.nbytes);
    return message;
}

/* Where a kernel is to pack it. */
template <typename T>
static T *devitocomp_packing(devitocomp_device *device, T *host, int count,
                             MPI_Datatype type)
{
    return (T *)devitocomp_find_message(device, host, count, type).data;
}

/* That kernel has been launched. */
static void devitocomp_packed(devitocomp_device *device, void *host)
{
    devitocomp_transit &message = device->messages[host];
    if (!device->direct)
        devitocomp_copy(device, host, message.data, message.nbytes,
                        DEVITOCOMP_API(MemcpyDeviceToHost), 0);
    message.used = device->syncs;
}

/* What MPI is to send, or to receive into, when the device has done its part. */
static void *devitocomp_for_mpi(devitocomp_device *device, void *host, int count,
                                MPI_Datatype type)
{
    devitocomp_transit &message = devitocomp_find_message(device, host, count, type);
    if (message.used == device->syncs)
        devitocomp_sync(device);
    return device->direct && !devitocomp_failed(device) ? message.data : host;
}

/* Where a kernel, which is launched next, finds what has been received. */
template <typename T>
static T *devitocomp_unpacking(devitocomp_device *device, T *host)
{
    devitocomp_transit &message = device->messages[host];
    if (!device->direct)
        devitocomp_copy(device, message.data, host, message.nbytes,
                        DEVITOCOMP_API(MemcpyHostToDevice), 0);
    message.used = device->syncs;
    return (T *)message.data;
}

static void devitocomp_release_messages(devitocomp_device *device)
{
    for (auto &i : device->messages) {
        if (i.second.data != nullptr)
            devitocomp_check(device, DEVITOCOMP_API(Free)(i.second.data),
                             "freeing device memory");
        if (i.second.pinned)
            devitocomp_check(device, DEVITOCOMP_API(HostUnregister)(i.first),
                             "unpinning memory");
        if (i.second.owned)
            free(i.first);
    }
}

/* Reduce one value over all ranks. */
template <typename T>
static void devitocomp_allreduce(devitocomp_device *device, T *data, MPI_Datatype type,
                                 MPI_Op op, MPI_Comm comm)
{
    T value = devitocomp_value(device, data);
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, op, comm);
    devitocomp_put(device, data, value);
}

#endif
