#pragma once
/// @file
/// NcclOptions: settings of NCCL's communicators. A program gives them to NcclWith<>.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Whether NCCL spends thread blocks on speed or leaves them to the program; NCCL's NCCL_CTA_POLICY_*.
/// @ingroup backends
enum class CtaPolicy {
  nccl_choice,
  speed,       ///< NCCL_CTA_POLICY_DEFAULT
  efficiency,  ///< as few blocks as full bandwidth needs; wants registered memory
  zero,        ///< copy engines instead of blocks where possible, since 2.28; wants `symmetric_arenas`
};

/// Argument of NcclWith: `NcclWith<NcclOptions{.max_ctas = 8}>`. The same on every rank. Options that are newer than
/// the NCCL of the compilation have no effect. NCCL's environment variables, such as NCCL_MAX_CTAS, override all
/// options. Only NCCL_ALGO and NCCL_PROTO select an algorithm and a protocol.
/// @ingroup backends
struct NcclOptions {
  /// Minimum and maximum number of thread blocks of one collective; 0: NCCL's choice. The backward pass runs on the
  /// same multiprocessors: with fewer blocks the pass has more multiprocessors, but the collective takes longer.
  /// @{
  int min_ctas = 0;
  int max_ctas = 0;
  /// @}
  int cga_cluster_size = -1;  ///< blocks in a cluster, 0 to 8; -1: NCCL's choice
  int traffic_class = -1;     ///< class that marks network packets, since 2.26; -1: NCCL's choice
  /// Blocks of a collective that uses NVLink SHARP, since 2.27; 0: NCCL's choice.
  int nvls_ctas = 0;
  CtaPolicy cta_policy = CtaPolicy::nccl_choice;  ///< since 2.27
  /// How the program uses CUDA graphs with one communicator, since 2.29: 0 not at all, 1 one graph, 2 several graphs,
  /// or graphs beside other operations; -1: NCCL's choice, which is 2. Lower values save work in each operation.
  int graph_usage_mode = -1;
  /// NCCL launches operations in the calling thread, which saves host time: otherwise it starts a thread for each.
  /// Then a channel's opening, its splits and its first operations, which a wrapper's constructor makes, wait inside
  /// NCCL for all ranks, where NCCL allows no abort (user guide, Fault Tolerance): if such a call has not returned 5 s
  /// after a timeout or the job's failure, the process ends with exit code 75.
  bool blocking = false;
  /// Channels that are opened from another one, by a wrapper or by ProcessGroup::split, use its buffers and connections
  /// (ncclConfig_t::splitShare). This saves device memory. But operations of channels that share run one after the
  /// other; no two threads may use such channels at once, closing them included; and an abort of one ends the
  /// operations of all, whose results are then wrong until the job has failed.
  bool share_splits = false;
  /// Registers arenas as windows of symmetric memory, since 2.27: faster between GPUs that NVLink connects. Otherwise
  /// arenas are registered one by one.
  bool symmetric_arenas = false;
};

}  // namespace DTRAIN_NAMESPACE::backend
