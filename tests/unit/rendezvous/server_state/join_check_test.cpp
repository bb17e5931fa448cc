#include "unit/rendezvous/prelude.hpp"

using dtrain::sanitize;

TEST_CASE("names that cannot be shown as they are, or are long, are compared as they are received") {
  Origin origin;
  origin.is_exact_job = true;
  origin.program = "train";
  for (const std::string& name : {std::string("monday\n"), std::string("a\tb"), std::string(300, 'x')}) {
    CAPTURE(name);
    const JoinCheck members("rank 0 on host a", name, {12, name, origin});
    const auto received = [&] {
      std::string shown = sanitize(name.substr(0, 256));
      shown.resize(std::min<std::size_t>(shown.size(), 256));
      return shown;
    }();
    Join join;
    join.job = received;
    join.info.host_id = received;
    join.origin = origin;
    join.process = 12;
    join.opens_store = true;
    CHECK(members.compare(join).relation == JobComparison::Relation::same);
    CHECK_FALSE(members.opens_another(join));
    join.job = "tuesday";
    CHECK(members.compare(join).relation == JobComparison::Relation::other);
    join.process = 13;
    CHECK(members.opens_another(join));
  }
}
