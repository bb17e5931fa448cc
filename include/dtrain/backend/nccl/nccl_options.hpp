#pragma once
/// @file
/// NcclOptions: settings of NCCL's communicators.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Argument of NcclWith: `NcclWith<NcclOptions{.max_ctas = 8}>`. The same on every rank. Options that are newer than
/// the NCCL of the compilation have no effect. NCCL's environment variables, such as NCCL_MAX_CTAS, override all
/// options. Only they select an algorithm and a protocol: NCCL_ALGO, NCCL_PROTO.
struct NcclOptions {
  /// Minimum and maximum number of thread blocks of one collective; 0: NCCL's choice. The backward pass runs on the
  /// same multiprocessors: with fewer blocks it has more of them, but the collective takes longer.
  /// @{
  int min_ctas = 0;
  int max_ctas = 0;
  /// @}
  int cga_cluster_size = -1;  ///< blocks in a cluster, 0 to 8; -1: NCCL's choice
  int traffic_class = -1;     ///< class that marks network packets, since 2.26; -1: NCCL's choice
  bool share_splits = false;  ///< a split uses its parent's buffers and connections, and ends with it
  /// Registers arenas as windows of symmetric memory, since 2.27: faster between GPUs that NVLink connects. Otherwise
  /// arenas are registered one by one.
  bool symmetric_arenas = false;
};

}  // namespace DTRAIN_NAMESPACE::backend
