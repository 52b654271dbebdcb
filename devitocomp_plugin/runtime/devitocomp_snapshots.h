/*
 * Snapshots that are compressed and decompressed while the device computes. Included by
 * generated code with compressed functions.
 *
 * Each compressed function has a pipeline: a thread of the host, a stream, and stages, which
 * are uncompressed snapshots, contiguous, in the memory of the device.
 *
 *   save   kernels' stream:  wait for a free stage | pack into it    | go on
 *          pipeline:                               | compress it, copy the payload, commit
 *
 *   load   pipeline:         decompress into a stage, ahead of time once the order is known
 *          kernels' stream:                       | unpack it        | go on
 *
 * The pipeline's stream waits, by events, until kernels are done with a stage. Kernels are
 * launched on a stage once the pipeline's thread has waited for its stream. Only that thread
 * calls the store and the provider, one job after the other, in the order of the time loop.
 *
 * Compression on the host is the same, but that uncompressed snapshots cross the bus.
 */
#ifndef DEVITOCOMP_SNAPSHOTS_H
#define DEVITOCOMP_SNAPSHOTS_H

#include "devitocomp.h"
#include "devitocomp_device.h"
#include "devitocomp_store.h"

#include <condition_variable>
#include <thread>

/* ---- Packing ---- */

struct devitocomp_box {
    int64_t dims[DEVITOCOMP_MAX_RANK];     /* at least three, slowest first */
    int64_t strides[DEVITOCOMP_MAX_RANK];  /* of the view */
    int rank;
};

/* Copy between a view and a stage. */
template <typename T>
static __global__ void devitocomp_pack_kernel(T *stage, T *view, devitocomp_box box,
                                              int64_t outer, int unpack)
{
    const int64_t nx = box.dims[box.rank - 1], ny = box.dims[box.rank - 2];
    const int64_t sx = box.strides[box.rank - 1], sy = box.strides[box.rank - 2];
    for (int64_t k = devitocomp_first_z(); k < outer; k += devitocomp_stride_z()) {
        int64_t rest = k, start = 0;
        for (int d = box.rank - 3; d >= 0; d--) {
            start += rest % box.dims[d] * box.strides[d];
            rest /= box.dims[d];
        }
        for (int64_t j = devitocomp_first_y(); j < ny; j += devitocomp_stride_y())
            for (int64_t i = devitocomp_first_x(); i < nx; i += devitocomp_stride_x()) {
                T *const a = stage + (k * ny + j) * nx + i;
                T *const b = view + start + j * sy + i * sx;
                if (unpack)
                    *b = *a;
                else
                    *a = *b;
            }
    }
}

template <typename T>
static void devitocomp_pack_as(devitocomp_device *device, void *stage,
                               const devitocomp_view_t &view, int unpack)
{
    devitocomp_box box = {};
    int64_t outer = 1;
    box.rank = std::max((int)view.rank, 3);
    for (int d = 0; d < box.rank; d++) {
        const int from = d - (box.rank - (int)view.rank);
        box.dims[d] = from < 0 ? 1 : view.dims[from];
        box.strides[d] = from < 0 ? 0 : view.strides[from];
        if (d < box.rank - 2)
            outer *= box.dims[d];
    }
    devitocomp_launch(device, {box.dims[box.rank - 1], box.dims[box.rank - 2], outer},
                      {32, 4, 4}, devitocomp_pack_kernel<T>, (T *)stage,
                      (T *)view.data + view.offset, box, outer, unpack);
}

static void devitocomp_pack(devitocomp_device *device, size_t element, void *stage,
                            const devitocomp_view_t &view, int unpack)
{
    if (element == 2)
        devitocomp_pack_as<uint16_t>(device, stage, view, unpack);
    else if (element == 4)
        devitocomp_pack_as<uint32_t>(device, stage, view, unpack);
    else
        devitocomp_pack_as<uint64_t>(device, stage, view, unpack);
}

/* ---- Pipelines ---- */

/* What the generated code has the provider do with a slot. */
typedef int (*devitocomp_provider_call)(devitocomp_plan_t *plan,
                                        devitocomp_execution_t *exec,
                                        devitocomp_slot_t *slot);

struct devitocomp_stage {
    void *data = nullptr;
    devitocomp_event event = nullptr;  /* recorded when kernels are done with it */
    bool recorded = false;
    int64_t index = -1;                /* of the snapshot that it holds, or is to hold */
    bool busy = false;                 /* the pipeline has yet to work on it */
    bool good = false;                 /* it holds the snapshot (loads) */
    bool asked_for = false;            /* by generated code, and not only ahead of time */
    uint64_t used = 0;                 /* when, to find the least recently used one */
};

struct devitocomp_job {
    devitocomp_stage *stage;  /* null: to stop */
    devitocomp_provider_call call;
    int64_t index;
    bool is_save, is_tentative;
};

struct devitocomp_pipeline {
    devitocomp_device *device = nullptr;
    devitocomp_store_t *store = nullptr;
    devitocomp_plan_t *plan = nullptr;
    devitocomp_execution_t exec = {};
    devitocomp_stream stream = nullptr;
    devitocomp_view_t packed = {};  /* a stage, but for the data */
    size_t element = 0, nbytes = 0;

    void *payload = nullptr;        /* device memory, unless the store has it there */
    void *pinned = nullptr;         /* for payloads, or snapshots compressed on the host */

    std::vector<devitocomp_stage> saves, loads;
    int ahead = 0;                  /* snapshots to be loaded ahead of time */
    int64_t last = -1;              /* snapshot that was asked for, for the first time */
    uint64_t clock = 0;             /* loads so far */
    size_t nsaved = 0;

    std::thread thread;
    std::mutex mutex;               /* of what follows, and of stages */
    std::condition_variable change;
    std::deque<devitocomp_job> jobs;
};

static bool devitocomp_on_host(const devitocomp_pipeline *p)
{
    return p->exec.kind == DEVITOCOMP_EXECUTION_HOST;
}

/* A stream of its own. */
static int devitocomp_new_queue(devitocomp_device *device)
{
    std::lock_guard<std::mutex> lock(device->mutex);
    return (1 << 20) + (int)device->queues.size();
}

/* How a provider is to execute: on a stream of its own, or on the host. */
static devitocomp_execution_t devitocomp_exec(devitocomp_device *device, int kind)
{
    devitocomp_execution_t exec = devitocomp_host(0);
    if (kind != DEVITOCOMP_EXECUTION_HOST) {
        exec.kind = (uint32_t)kind;
        exec.stream = devitocomp_queue(device, devitocomp_new_queue(device));
    }
    return exec;
}

/* Wait until all that the pipeline has queued is done. */
static bool devitocomp_drain(devitocomp_pipeline *p)
{
    return devitocomp_check(p->device, DEVITOCOMP_API(StreamSynchronize)(p->stream),
                            "compressing or decompressing a snapshot");
}

static void devitocomp_queue_copy(devitocomp_pipeline *p, void *to, const void *from,
                                  size_t nbytes, DEVITOCOMP_API(MemcpyKind) kind)
{
    if (nbytes != 0)
        devitocomp_check(p->device, DEVITOCOMP_API(MemcpyAsync)(to, from, nbytes, kind,
                                                                p->stream),
                         "copying a snapshot");
}

static void devitocomp_wait_for_kernels(devitocomp_pipeline *p, devitocomp_stage *stage)
{
    if (stage->recorded)
        devitocomp_check(p->device, DEVITOCOMP_API(StreamWaitEvent)(p->stream, stage->event,
                                                                    0),
                         "waiting for an event");
}

/* The stage as the store is to see it. */
static devitocomp_view_t devitocomp_stage_view(devitocomp_pipeline *p,
                                               devitocomp_stage *stage)
{
    devitocomp_view_t view = p->packed;
    view.kind = p->exec.kind;
    view.data = devitocomp_on_host(p) ? p->pinned : stage->data;
    return view;
}

/* The status to tell the store: nothing is as it should be once the device has failed. */
static int devitocomp_outcome(devitocomp_pipeline *p, int status)
{
    return devitocomp_failed(p->device) ? DEVITOCOMP_PROVIDER_ERROR : status;
}

/* Compress a stage into the store. */
static bool devitocomp_compress_stage(devitocomp_pipeline *p, const devitocomp_job &job)
{
    devitocomp_wait_for_kernels(p, job.stage);
    if (devitocomp_on_host(p)) {
        devitocomp_queue_copy(p, p->pinned, job.stage->data, p->nbytes,
                              DEVITOCOMP_API(MemcpyDeviceToHost));
        devitocomp_drain(p);
    }
    devitocomp_slot_t slot = devitocomp_store_reserve(p->store, job.index,
                                                      devitocomp_stage_view(p, job.stage));
    if (!slot.ready)
        return false;
    void *const room = slot.payload;
    if (p->payload != nullptr)
        slot.payload = p->payload;
    const int status = job.call(p->plan, &p->exec, &slot);
    const bool copy = p->payload != nullptr && status == DEVITOCOMP_OK &&
                      slot.payload_bytes <= slot.capacity;
    if (copy)
        devitocomp_queue_copy(p, p->pinned, p->payload, slot.payload_bytes,
                              DEVITOCOMP_API(MemcpyDeviceToHost));
    /* Before the payload is read, and before the stage is packed anew */
    devitocomp_drain(p);
    if (copy)
        memcpy(room, p->pinned, slot.payload_bytes);
    slot.payload = room;
    devitocomp_store_commit(p->store, &slot, devitocomp_outcome(p, status),
                            devitocomp_message(p->plan));
    return true;
}

/* Decompress what the store has into a stage. */
static bool devitocomp_decompress_stage(devitocomp_pipeline *p, const devitocomp_job &job)
{
    devitocomp_slot_t slot = devitocomp_store_acquire(
        p->store, job.index, devitocomp_stage_view(p, job.stage),
        job.is_tentative ? DEVITOCOMP_TENTATIVE : 0);
    if (slot.failed)
        return false;
    devitocomp_wait_for_kernels(p, job.stage);
    int status = DEVITOCOMP_OK;
    void *const content = slot.payload;
    if (slot.ready) {
        if (p->payload != nullptr) {
            memcpy(p->pinned, content, slot.payload_bytes);
            devitocomp_queue_copy(p, p->payload, p->pinned, slot.payload_bytes,
                                  DEVITOCOMP_API(MemcpyHostToDevice));
            slot.payload = p->payload;
        }
        status = job.call(p->plan, &p->exec, &slot);
    }
    if (devitocomp_on_host(p))
        devitocomp_queue_copy(p, job.stage->data, p->pinned, p->nbytes,
                              DEVITOCOMP_API(MemcpyHostToDevice));
    else if (slot.unwritten)
        devitocomp_check(p->device, DEVITOCOMP_API(MemsetAsync)(
            job.stage->data, 0, p->nbytes, p->stream), "zeroing a snapshot");
    /* Before the stage is unpacked, and before others write to the pinned memory */
    devitocomp_drain(p);
    status = devitocomp_outcome(p, status);
    if (slot.ready) {
        slot.payload = content;
        devitocomp_store_release(p->store, &slot, status, devitocomp_message(p->plan));
    }
    return status == DEVITOCOMP_OK;
}

static void devitocomp_run_pipeline(devitocomp_pipeline *p)
{
    devitocomp_check(p->device, DEVITOCOMP_API(SetDevice)(p->device->id),
                     "choosing the device");
    for (;;) {
        std::unique_lock<std::mutex> lock(p->mutex);
        p->change.wait(lock, [p] { return !p->jobs.empty(); });
        const devitocomp_job job = p->jobs.front();
        p->jobs.pop_front();
        lock.unlock();
        if (job.stage == nullptr)
            return;
        bool good = false;
        if (!devitocomp_failed(p->device))
            good = job.is_save ? devitocomp_compress_stage(p, job)
                               : devitocomp_decompress_stage(p, job);
        lock.lock();
        job.stage->good = good;
        job.stage->busy = false;
        p->change.notify_all();
    }
}

/* Memory for a stage, when it is first used. Returns false if there is none. */
static bool devitocomp_prepare(devitocomp_pipeline *p, devitocomp_stage *stage)
{
    if (stage->data == nullptr)
        stage->data = devitocomp_alloc(p->device, p->nbytes);
    if (stage->event == nullptr && stage->data != nullptr)
        devitocomp_check(p->device, DEVITOCOMP_API(EventCreateWithFlags)(
            &stage->event, DEVITOCOMP_API(EventDisableTiming)), "creating an event");
    return !devitocomp_failed(p->device);
}

/*
 * Begin the pipeline of a function whose snapshots are loaded at `nloads` places and saved
 * at `nsaves`. With `degree` 1 nothing happens ahead of time or afterwards.
 */
static devitocomp_pipeline *devitocomp_begin_snapshots(
    devitocomp_device *device, devitocomp_store_t *store, devitocomp_plan_t *plan,
    devitocomp_execution_t exec, int nloads, int nsaves, int degree)
{
    static const size_t elements[] = {0, 4, 8, 2, 4, 8};
    devitocomp_pipeline *const p = new devitocomp_pipeline;
    const devitocomp_tensor_t tensor = devitocomp_store_packed(store);
    p->device = device;
    p->store = store;
    p->plan = plan;
    p->exec = exec;
    p->ahead = degree - 1;
    p->element = elements[tensor.dtype];
    p->nbytes = p->element;
    p->packed.rank = tensor.rank;
    for (uint32_t i = 0; i < tensor.rank; i++) {
        p->packed.dims[i] = tensor.dims[i];
        p->packed.strides[i] = tensor.strides[i];
        p->nbytes *= (size_t)tensor.dims[i];
    }
    if (devitocomp_failed(device) || devitocomp_store_failed(store))
        return p;
    if (devitocomp_on_host(p)) {
        p->stream = devitocomp_queue(device, devitocomp_new_queue(device));
        devitocomp_host_alloc(device, &p->pinned, 64, p->nbytes);
    } else {
        p->stream = (devitocomp_stream)exec.stream;
        if (devitocomp_store_kind(store) == DEVITOCOMP_EXECUTION_HOST) {
            size_t capacity = (size_t)devitocomp_limits(plan).max_compressed_bytes;
            p->payload = devitocomp_alloc(device, capacity);
            devitocomp_host_alloc(device, &p->pinned, 64, capacity);
        }
    }
    p->saves.resize(nsaves ? (size_t)degree : 0);
    p->loads.resize(nloads ? (size_t)(nloads + degree - 1) : 0);
    if (!devitocomp_failed(device))
        p->thread = std::thread(devitocomp_run_pipeline, p);
    return p;
}

/* Have all jobs done, and free all but the plan, which is returned. */
static devitocomp_plan_t *devitocomp_end_snapshots(devitocomp_pipeline *p)
{
    devitocomp_plan_t *const plan = p->plan;
    if (p->thread.joinable()) {
        {
            std::lock_guard<std::mutex> lock(p->mutex);
            p->jobs.push_back({nullptr, nullptr, -1, false, false});
            p->change.notify_all();
        }
        p->thread.join();
    }
    for (auto stages : {&p->saves, &p->loads})
        for (auto &i : *stages) {
            devitocomp_free(p->device, i.data);
            if (i.event != nullptr)
                devitocomp_check(p->device, DEVITOCOMP_API(EventDestroy)(i.event),
                                 "destroying an event");
        }
    devitocomp_free(p->device, p->payload);
    if (p->pinned != nullptr)
        devitocomp_host_free(p->pinned);
    delete p;
    return plan;
}

static bool devitocomp_is_idle(const devitocomp_pipeline *p)
{
    return !p->thread.joinable() || devitocomp_failed(p->device) ||
           devitocomp_store_failed(p->store);
}

static bool devitocomp_is_empty(const devitocomp_view_t &view)
{
    for (uint32_t i = 0; i < view.rank; i++)
        if (view.dims[i] == 0)
            return true;
    return false;
}

/* Pack a view into a stage, or unpack it, with the kernels launched so far. */
static void devitocomp_exchange(devitocomp_pipeline *p, devitocomp_stage *stage,
                                const devitocomp_view_t &view, int unpack)
{
    devitocomp_pack(p->device, p->element, stage->data, view, unpack);
    devitocomp_stream stream = devitocomp_queue(p->device, 0);
    if (!devitocomp_failed(p->device))
        stage->recorded = devitocomp_check(p->device, DEVITOCOMP_API(EventRecord)(
            stage->event, stream), "recording an event");
}

static void devitocomp_push(devitocomp_pipeline *p, const devitocomp_job &job)
{
    job.stage->busy = true;
    job.stage->index = job.index;
    p->jobs.push_back(job);
    p->change.notify_all();
}

/* ---- Called by generated code ---- */

/* Compress what the view, in the memory of the device, holds now. */
static void devitocomp_save(devitocomp_pipeline *p, int64_t index, devitocomp_view_t view,
                            devitocomp_provider_call call)
{
    if (devitocomp_is_empty(view)) {
        devitocomp_store_reserve(p->store, index, view);
        return;
    }
    if (devitocomp_is_idle(p))
        return;
    devitocomp_stage *const stage = &p->saves[p->nsaved++ % p->saves.size()];
    std::unique_lock<std::mutex> lock(p->mutex);
    p->change.wait(lock, [stage] { return !stage->busy; });
    for (auto &i : p->loads)
        if (i.index == index)
            i.index = -1;
    lock.unlock();
    if (!devitocomp_prepare(p, stage))
        return;
    devitocomp_exchange(p, stage, view, 0);
    lock.lock();
    devitocomp_push(p, {stage, call, index, true, false});
}

/* Queue the loading of a snapshot, into the stage that was not used for longest. Null on
   failure, or if that cannot be without waiting and `is_tentative`. Call it with the lock. */
static devitocomp_stage *devitocomp_begin_load(devitocomp_pipeline *p, int64_t index,
                                               devitocomp_provider_call call,
                                               bool is_tentative,
                                               std::unique_lock<std::mutex> &lock)
{
    devitocomp_stage *stage = nullptr;
    const auto find = [p, &stage] {
        stage = nullptr;
        for (auto &i : p->loads)
            if (!i.busy && (stage == nullptr || i.used < stage->used))
                stage = &i;
        return stage != nullptr;
    };
    if (is_tentative && !find())
        return nullptr;
    p->change.wait(lock, find);
    if (!devitocomp_prepare(p, stage))
        return nullptr;
    stage->asked_for = false;
    stage->used = ++p->clock;
    devitocomp_push(p, {stage, call, index, false, is_tentative});
    return stage;
}

static devitocomp_stage *devitocomp_find_stage(devitocomp_pipeline *p, int64_t index)
{
    for (auto &i : p->loads)
        if (i.index == index)
            return &i;
    return nullptr;
}

/* Load ahead of time what comes next, if snapshots are asked for at regular steps. */
static void devitocomp_look_ahead(devitocomp_pipeline *p, int64_t index,
                                  devitocomp_provider_call call,
                                  std::unique_lock<std::mutex> &lock)
{
    const int64_t step = p->last < 0 ? 0 : index - p->last;
    p->last = index;
    for (int n = 1; n <= p->ahead && step != 0; n++) {
        const int64_t next = index + n * step;
        if (!devitocomp_store_covers(p->store, next))
            return;
        if (devitocomp_find_stage(p, next) == nullptr)
            devitocomp_begin_load(p, next, call, true, lock);
    }
}

/* Decompress a snapshot into the view, in the memory of the device. */
static void devitocomp_load(devitocomp_pipeline *p, int64_t index, devitocomp_view_t view,
                            devitocomp_provider_call call)
{
    if (devitocomp_is_empty(view) || devitocomp_is_idle(p))
        return;
    std::unique_lock<std::mutex> lock(p->mutex);
    devitocomp_stage *stage = devitocomp_find_stage(p, index);
    if (stage != nullptr)
        p->change.wait(lock, [stage] { return !stage->busy; });
    if (stage == nullptr || !stage->good) {
        if (stage != nullptr)
            stage->index = -1;
        stage = devitocomp_begin_load(p, index, call, false, lock);
        if (stage == nullptr)
            return;
        p->change.wait(lock, [stage] { return !stage->busy; });
    }
    if (!stage->good)
        return;
    stage->used = ++p->clock;
    lock.unlock();
    devitocomp_exchange(p, stage, view, 1);
    lock.lock();
    if (!stage->asked_for) {
        stage->asked_for = true;
        devitocomp_look_ahead(p, index, call, lock);
    }
}

#endif
