// The concepts of a policy's launcher, with types that lack only one of what each asks for.

#include "dtrain/launch/launcher.hpp"
#include "dtrain/launch/any.hpp"
#include "dtrain/launch/per_node.hpp"
#include "dtrain/launch/per_process.hpp"
#include "unit/launch/prelude.hpp"

namespace {

struct Starts {
  static StartResult start(int, char**) { return StartResult(0); }
};
struct Named {
  static constexpr const char* name() noexcept { return "launch::OfThisTest"; }
};
struct NeverReturns {
  static constexpr bool returns_into_user_code = false;
};
struct AlwaysReturns {
  static constexpr bool returns_into_user_code = true;
};

struct StartsRanks : Starts, Named, NeverReturns {};
struct ReturnsAsRank : Starts, Named, AlwaysReturns {};
struct WithoutStart : Named, NeverReturns {};
struct WithoutName : Starts, NeverReturns {};
struct WithoutReturns : Starts, Named {};

struct Joins : StartsRanks {
  static constexpr bool also_joins = true;
};
struct NeverJoins : StartsRanks {
  static constexpr bool also_joins = false;
};
struct JoinsByFunction : StartsRanks {
  static bool also_joins() { return true; }
};
struct JoinsByMember : StartsRanks {
  bool also_joins = true;
};

}  // namespace

TEST_CASE("a launcher starts, has a name and states whether it returns, and a type that lacks one is none") {
  CHECK(Launcher<Any>);
  CHECK(Launcher<PerNode>);
  CHECK(Launcher<PerProcess>);
  CHECK(Launcher<StartsRanks>);
  CHECK_FALSE(Launcher<WithoutStart>);
  CHECK_FALSE(Launcher<WithoutName>);
  CHECK_FALSE(Launcher<WithoutReturns>);
}

TEST_CASE("a launcher also joins if it has a constant that says so") {
  CHECK(AlsoJoins<Any>);
  CHECK(AlsoJoins<Joins>);
  CHECK_FALSE(AlsoJoins<PerNode>);
  CHECK_FALSE(AlsoJoins<PerProcess>);
  CHECK_FALSE(AlsoJoins<StartsRanks>);
  CHECK_FALSE(AlsoJoins<NeverJoins>);
  CHECK_FALSE(AlsoJoins<JoinsByFunction>);
  CHECK_FALSE(AlsoJoins<JoinsByMember>);
}

TEST_CASE("a process of another launcher becomes a rank where start() always returns as one, or also joins") {
  CHECK(joins_other_launchers<Any>);
  CHECK(joins_other_launchers<PerProcess>);
  CHECK(joins_other_launchers<ReturnsAsRank>);
  CHECK(joins_other_launchers<Joins>);
  CHECK_FALSE(joins_other_launchers<PerNode>);
  CHECK_FALSE(joins_other_launchers<StartsRanks>);
  CHECK_FALSE(joins_other_launchers<NeverJoins>);
}
