/*
 * device.cu -- a lossless provider that runs on devices only, by CUDA or HIP.
 *
 * A payload is the snapshot up to its last element that is not zero. Work is queued on the
 * stream that it is given; only for the size of a payload does it wait. It takes contiguous
 * tensors of float and double of any rank, and needs no sidecar.
 */
#include "devitocomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(DEVICE_HIP)
#include <hip/hip_runtime.h>
#define API(name) hip##name
#define KIND DEVITOCOMP_EXECUTION_HIP
#else
#include <cuda_runtime.h>
#define API(name) cuda##name
#define KIND DEVITOCOMP_EXECUTION_CUDA
#endif

#define DTYPES (DEVITOCOMP_BIT(DEVITOCOMP_FLOAT32) | DEVITOCOMP_BIT(DEVITOCOMP_FLOAT64))
#define ALIGNMENT 128
#define EXPORT extern "C" DEVITOCOMP_EXPORT

struct devitocomp_plan {
    size_t bytes;
    int *used;  /* on the device: words up to the last one that is not zero */
    char message[128];
};

static thread_local char create_message[128];

static int fail(char *message, int status, const char *what)
{
    snprintf(message, sizeof(create_message), "%s", what);
    return status;
}

static int check(devitocomp_plan_t *plan, API(Error_t) error)
{
    if (error == API(Success))
        return DEVITOCOMP_OK;
    (void)API(GetLastError)();
    return fail(plan->message, DEVITOCOMP_PROVIDER_ERROR, API(GetErrorString)(error));
}

static __global__ void find_used(const unsigned *words, int count, int *used)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count && words[i])
        atomicMax(used, i + 1);
}

static int launch(devitocomp_plan_t *plan, const void *tensor, void *stream)
{
    const int count = (int)(plan->bytes / 4);
    const dim3 blocks((unsigned)(count + 255) / 256), threads(256);
#if defined(DEVICE_HIP)
    hipLaunchKernelGGL(find_used, blocks, threads, 0, (hipStream_t)stream,
                       (const unsigned *)tensor, count, plan->used);
    return check(plan, hipGetLastError());
#else
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = (cudaStream_t)stream;
    return check(plan, cudaLaunchKernelEx(&config, find_used, (const unsigned *)tensor,
                                          count, plan->used));
#endif
}

EXPORT uint32_t devitocomp_abi_version(void)
{
    return DEVITOCOMP_ABI_VERSION;
}

EXPORT const char *devitocomp_provider_name(void)
{
    return "device";
}

EXPORT const char *devitocomp_provider_version(void)
{
    return "0.1";
}

EXPORT void devitocomp_plan_destroy(devitocomp_plan_t *plan)
{
    if (!plan)
        return;
    (void)API(Free)(plan->used);
    free(plan);
}

EXPORT int devitocomp_plan_create(uint32_t version, const devitocomp_tensor_t *tensor,
                                  const devitocomp_execution_t *exec, const char *,
                                  devitocomp_plan_t **plan)
{
    *plan = NULL;
    if (version != DEVITOCOMP_ABI_VERSION)
        return fail(create_message, DEVITOCOMP_VERSION_MISMATCH, "another ABI version");
    if (exec->kind != KIND)
        return fail(create_message, DEVITOCOMP_UNSUPPORTED, "on devices only");
    if (!(DTYPES & DEVITOCOMP_BIT(tensor->dtype)))
        return fail(create_message, DEVITOCOMP_UNSUPPORTED, "neither float nor double");
    devitocomp_plan_t *p = (devitocomp_plan_t *)calloc(1, sizeof(*p));
    p->bytes = tensor->dtype == DEVITOCOMP_FLOAT64 ? 8 : 4;
    for (int64_t d = (int64_t)tensor->rank - 1, stride = 1; d >= 0; d--) {
        if (tensor->strides[d] != stride) {
            free(p);
            return fail(create_message, DEVITOCOMP_UNSUPPORTED, "not contiguous");
        }
        stride *= tensor->dims[d];
        p->bytes *= (size_t)tensor->dims[d];
    }
    if (check(p, API(Malloc)((void **)&p->used, sizeof(int)))) {
        fail(create_message, 0, p->message);
        free(p);
        return DEVITOCOMP_OUT_OF_MEMORY;
    }
    *plan = p;
    return DEVITOCOMP_OK;
}

EXPORT int devitocomp_plan_limits(const devitocomp_plan_t *plan,
                                  devitocomp_limits_t *limits)
{
    const uint32_t size = limits->struct_size;
    memset(limits, 0, sizeof(*limits));
    limits->struct_size = size;
    limits->flags = DEVITOCOMP_DETERMINISTIC;
    limits->execution_kinds = limits->portable_kinds = DEVITOCOMP_BIT(KIND);
    limits->dtypes = DTYPES;
    limits->ranks = 0x1fe;
    limits->payload_version = 1;
    if (plan) {
        limits->error_kind = DEVITOCOMP_ERROR_LOSSLESS;
        limits->max_compressed_bytes = plan->bytes;
        limits->payload_alignment = ALIGNMENT;
        limits->sidecar_alignment = 1;
    }
    return DEVITOCOMP_OK;
}

EXPORT int devitocomp_compress(devitocomp_plan_t *plan, const devitocomp_execution_t *exec,
                               const void *tensor, void *payload, size_t capacity,
                               size_t *compressed_bytes, void *)
{
    API(Stream_t) const stream = (API(Stream_t))exec->stream;
    int used = 0, status;

    if ((uintptr_t)payload % ALIGNMENT)
        return fail(plan->message, DEVITOCOMP_INVALID_ARGUMENT, "misaligned payload");
    if ((status = check(plan, API(MemsetAsync)(plan->used, 0, sizeof(int), stream))) ||
        (status = launch(plan, tensor, exec->stream)) ||
        (status = check(plan, API(MemcpyAsync)(&used, plan->used, sizeof(int),
                                               API(MemcpyDeviceToHost), stream))) ||
        (status = check(plan, API(StreamSynchronize)(stream))))
        return status;
    *compressed_bytes = 4 * (size_t)used;
    if (*compressed_bytes > capacity)
        return fail(plan->message, DEVITOCOMP_BUFFER_TOO_SMALL, "no room");
    return !used ? DEVITOCOMP_OK
                 : check(plan, API(MemcpyAsync)(payload, tensor, *compressed_bytes,
                                                API(MemcpyDeviceToDevice), stream));
}

EXPORT int devitocomp_decompress(devitocomp_plan_t *plan,
                                 const devitocomp_execution_t *exec, const void *payload,
                                 size_t compressed_bytes, const void *, void *tensor)
{
    API(Stream_t) const stream = (API(Stream_t))exec->stream;
    int status = DEVITOCOMP_OK;

    if (compressed_bytes > plan->bytes || compressed_bytes % 4)
        return fail(plan->message, DEVITOCOMP_CORRUPT_PAYLOAD, "not of such a snapshot");
    if (compressed_bytes)
        status = check(plan, API(MemcpyAsync)(tensor, payload, compressed_bytes,
                                              API(MemcpyDeviceToDevice), stream));
    if (status == DEVITOCOMP_OK && compressed_bytes < plan->bytes)
        status = check(plan, API(MemsetAsync)((char *)tensor + compressed_bytes, 0,
                                              plan->bytes - compressed_bytes, stream));
    return status;
}

EXPORT const char *devitocomp_message(const devitocomp_plan_t *plan)
{
    return plan ? plan->message : create_message;
}
