#pragma once
/// @file
/// What a program may ask of NCCL beyond its defaults.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// The argument of NcclWith: `NcclWith<NcclOptions{.max_ctas = 8}>`. The same on every rank. What the NCCL that the
/// program is compiled with does not know yet is left out. NCCL's environment variables go before all of it, and are
/// how an algorithm and a protocol are chosen, which NCCL has no options for: NCCL_ALGO, NCCL_PROTO, NCCL_MAX_CTAS.
struct NcclOptions {
  /// Blocks of threads that one collective occupies at least and at most; 0: NCCL's choice. They run on the processors
  /// that backward runs on: fewer leave it more of them, and take longer.
  /// @{
  int min_ctas = 0;
  int max_ctas = 0;
  /// @}
  int cga_cluster_size = -1;  ///< blocks in a cluster, 0 to 8; -1: NCCL's choice
  int traffic_class = -1;     ///< what the network marks packets with, since 2.26; -1: NCCL's choice
  bool share_splits = false;  ///< a split uses the buffers and connections of what it was split off; ends with it
  /// Arenas become windows of symmetric memory, since 2.27: faster between GPUs that NVLink connects. Else they are
  /// registered one by one.
  bool symmetric_arenas = false;
};

}  // namespace DTRAIN_NAMESPACE::backend
