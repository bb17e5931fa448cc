#pragma once
/// @file
/// What a gradient hook costs and saves, for models of a step.

namespace bench {

/// A gradient hook: its work and its collectives run one after the other on the stream that communicates, on a core
/// that no computing needs.
struct Compression {
  double sent_share = 1;        ///< of the bytes of plain all-reduces
  double bytes_per_second = 1;  ///< of gradients, compressed and decompressed

  /// The reduction of a bucket. @param reduction_seconds of so many bytes: double(double)
  template <class Reduction>
  double seconds(double bytes, Reduction reduction_seconds) const {
    return bytes / bytes_per_second + reduction_seconds(sent_share * bytes);
  }

  /// The bandwidth of the links between hosts below which a reduction of many bytes is shorter with it: a link carries
  /// 2 (h - 1) / h of the bytes.
  double pays_below(int hosts) const noexcept {
    return 2.0 * (hosts - 1) / hosts * (1 - sent_share) * bytes_per_second;
  }
};

}  // namespace bench
