"""A language backend of Devito for CUDA and HIP."""
