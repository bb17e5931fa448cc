#pragma once
/// @file
/// A store with a formation, on a thread of its own.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/formation/formation_server.hpp"
#include "unit/rendezvous/store_fixture.hpp"

namespace rendezvous_test {

/// What a launcher does when its formation calls it.
struct FormationCallbacks {
  std::function<void(std::uint64_t attempt, const std::vector<WorkerId>& ranks)> on_attempt =
      [](std::uint64_t, const std::vector<WorkerId>&) {};
  std::function<void()> on_end = [] {};
};

/// A store with a formation, on a thread of its own, as a launcher has it.
class FormationProcess {
 public:
  explicit FormationProcess(const FormationOptions& options, std::optional<Secret> secret = {},
                            FormationCallbacks callbacks = {})
      : secret_(std::move(secret)) {
    const auto open = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
      store_ = std::make_unique<StoreServer>(loop, dtrain::net::Listener::bind_loopback(loop, 0),
                                             ServerOptions{secret_, usual_limits()});
      formation_ = std::make_unique<FormationServer<FormationCallbacks>>(loop, *store_, options, StoreJobOptions{},
                                                                         usual_limits(), std::move(callbacks));
      port_ = store_->local().port();
      co_return;
    };
    thread_.run_blocking(open, soon());
  }
  FormationProcess(const FormationProcess&) = delete;
  FormationProcess& operator=(const FormationProcess&) = delete;
  ~FormationProcess() {
    const auto close = [&](dtrain::async::EventLoop&) -> dtrain::async::Task<void> {
      formation_.reset();
      store_.reset();
      co_return;
    };
    thread_.run_blocking(close, soon());
  }

  void process_ended(std::int64_t process) {
    thread_.loop().post([this, process] { formation_->process_ended("h", process, 0, "killed by signal 9"); });
  }
  void stop(const std::string& why) {
    thread_.loop().post([this, why] { formation_->stop(why); });
  }
  void drain_blocking(bool is_cut_short = false) {
    const auto drain = [&](dtrain::async::EventLoop&) -> dtrain::async::Task<void> {
      return formation_->drain([is_cut_short] { return is_cut_short; });
    };
    thread_.run_blocking(drain, soon());
  }
  StoreAddress address(std::optional<Secret> secret) const {
    StoreAddress address;
    address.host = "127.0.0.1";
    address.port = port_;
    address.secret = std::move(secret);
    return address;
  }
  StoreAddress address() const { return address(secret_); }

 private:
  std::optional<Secret> secret_;
  std::uint16_t port_ = 0;
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<FormationServer<FormationCallbacks>> formation_;
  dtrain::async::LoopThread thread_;
};

}  // namespace rendezvous_test
