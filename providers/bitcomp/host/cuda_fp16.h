/* Stands in for CUDA's header of this name, of which Bitcomp's header uses nothing in C. */
