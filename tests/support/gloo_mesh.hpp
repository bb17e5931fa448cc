#pragma once
/// @file
/// A connected mesh of Gloo, for ranks that are threads.

#include <chrono>
#include <memory>
#include <string>

#include "dtrain/backend/gloo/mesh.hpp"
#include "support/channel_context.hpp"

namespace support {

struct ConnectedMesh {
  ConnectedMesh(const std::shared_ptr<FakeJob>& job, int rank, int size, const std::string& name = "group")
      : ConnectedMesh(channel_context(job, rank, size, name, std::chrono::seconds(10))) {}

  explicit ConnectedMesh(const dtrain::backend::ChannelContext& context)
      : store(context.store), mesh(context, deadline) {
    mesh.exchange_addresses(store, deadline);
    mesh.connect();
    mesh.await_all(store, deadline);
  }

  dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(10));
  dtrain::backend::StoreRef store;
  dtrain::backend::gloo::Mesh mesh;
};

}  // namespace support
