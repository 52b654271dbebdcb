/* Stands in for CUDA's header of this name where only the host part of Bitcomp is used:
   all that Bitcomp's header wants from it is a type to point to. */
typedef struct CUstream_st *cudaStream_t;
