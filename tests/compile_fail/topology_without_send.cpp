// A topology that is written on send and recv, over a backend that has none.
// expect: dtrain: this topology needs a backend with send and recv
#include <string_view>

#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "support/store_backend.hpp"

struct Line {
  static constexpr std::string_view name() noexcept { return "Line"; }

  template <class B>
  static constexpr bool supports_backend = [] {
    if constexpr (dtrain::backend::Backend<B>) {
#ifdef DTRAIN_COMPILE_FAIL
      return dtrain::backend::CanSendRecv<typename B::Communicator>;
#else
      return true;
#endif
    }
    return false;
  }();

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>, "dtrain: this topology needs a backend with send and recv");
  }

  template <class B>
  using Rebind = B;
};

static_assert(dtrain::Policy<dtrain::launch::PerProcess, support::StoreBackend, Line>::topology_fits_backend);
