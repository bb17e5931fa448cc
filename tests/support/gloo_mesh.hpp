#pragma once
/// @file
/// A connected mesh of Gloo, for ranks that are threads.

#include <chrono>
#include <memory>

#include "dtrain/backend/gloo/mesh.hpp"
#include "support/channel_context.hpp"

namespace support {

struct ConnectedMesh {
  /// @param options as of channel_context
  template <class... Options>
  ConnectedMesh(const std::shared_ptr<FakeJob>& job, int rank, int size, const Options&... options)
      : ConnectedMesh(channel_context(job, rank, size, options...)) {}

  explicit ConnectedMesh(const dtrain::backend::ChannelContext& context)
      : store(context.store), mesh(context, deadline) {
    mesh.exchange_addresses(context, deadline);
    mesh.connect();
    mesh.await_all(context, deadline);
  }

  dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  dtrain::backend::StoreRef store;
  dtrain::backend::gloo::Mesh mesh;
};

}  // namespace support
