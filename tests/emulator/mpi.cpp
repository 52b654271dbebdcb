/*
 * mpi.cpp -- an MPI that takes addresses on the emulated device.
 *
 * A library to be preloaded: it wraps those functions of MPI that generated code calls. Like
 * a real one, it does not know on which streams the work on a message is queued, so that it
 * sends what is on the device at the time, and receives at any time from MPI_Irecv on.
 */
#include "cuda_runtime.h"

#include <mpi.h>

#include <cstring>
#include <map>
#include <vector>

namespace {

struct Message {
  std::vector<char> copy;
  void *device;
  bool receive;
};
/* Those between a call that starts them and MPI_Wait. */
std::map<MPI_Request, Message> pending;
int count_of_messages;

bool on_device(const void *pointer) {
  cudaPointerAttributes found;
  if (cudaPointerGetAttributes(&found, pointer) == cudaSuccess)
    return found.type == cudaMemoryTypeDevice;
  (void)cudaGetLastError();
  return false;
}

size_t bytes_of(int count, MPI_Datatype type) {
  int size;
  MPI_Type_size(type, &size);
  return size_t(count) * size;
}

/* The call has been made, and its work is done, though not that of other streams. */
void finish(cudaError_t error) {
  if (error != cudaSuccess || cudaStreamSynchronize(nullptr) != cudaSuccess)
    MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace

extern "C" {

/* How many messages have been on the device. */
int cudaemul_mpi_messages(void) { return count_of_messages; }

int MPIX_Query_cuda_support(void) { return 1; }

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag,
              MPI_Comm comm, MPI_Request *request) {
  if (to == MPI_PROC_NULL || !on_device(data))
    return PMPI_Isend(data, count, type, to, tag, comm, request);
  Message message{std::vector<char>(bytes_of(count, type)), nullptr, false};
  finish(cudaMemcpy(message.copy.data(), data, message.copy.size(),
                    cudaMemcpyDeviceToHost));
  const int result =
      PMPI_Isend(message.copy.data(), count, type, to, tag, comm, request);
  pending[*request] = std::move(message);
  count_of_messages++;
  return result;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request) {
  if (from == MPI_PROC_NULL)
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
  const size_t bytes = bytes_of(count, type);
  if (!on_device(data)) {
    memset(data, 0xFF, bytes);
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
  }
  finish(cudaMemset(data, 0xFF, bytes));
  Message message{std::vector<char>(bytes), data, true};
  const int result =
      PMPI_Irecv(message.copy.data(), count, type, from, tag, comm, request);
  pending[*request] = std::move(message);
  count_of_messages++;
  return result;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
  auto found = pending.find(*request);
  const int result = PMPI_Wait(request, status);
  if (found == pending.end()) return result;
  const Message &message = found->second;
  if (message.receive)
    finish(cudaMemcpy(message.device, message.copy.data(), message.copy.size(),
                      cudaMemcpyHostToDevice));
  pending.erase(found);
  return result;
}

}
