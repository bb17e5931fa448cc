// A topology that is written on send and recv, over a backend that has none.
// expect: dtrain: this topology needs a backend with send and recv
#include "dtrain/dtrain.hpp"
#include "support/store_backend.hpp"

struct Line {
  static constexpr std::string_view name() noexcept { return "Line"; }

#ifdef DTRAIN_COMPILE_FAIL
  template <class C>
  static constexpr bool works_on = dtrain::backend::CanSendRecv<C>;
#else
  template <class C>
  static constexpr bool works_on = dtrain::backend::CanAllReduce<C>;
#endif

  template <class C>
  static constexpr void require() noexcept {
    static_assert(works_on<C>, "dtrain: this topology needs a backend with send and recv");
  }
};

static_assert(dtrain::Policy<dtrain::launch::PerNode, support::StoreBackend, Line>::fits);
