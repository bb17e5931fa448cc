#include "unit/launch/prelude.hpp"

namespace {

/// A fold with a clock that a test moves.
class Fold {
 public:
  explicit Fold(int ranks)
      : fold_(ranks, [this](std::string_view prefix, std::string_view text) {
          shown_.push_back(std::string(prefix) + std::string(text));
        }) {}
  Fold(const Fold&) = delete;
  Fold& operator=(const Fold&) = delete;

  void say(int rank, std::string_view line) { fold_.take(rank, line, now_); }
  void after(milliseconds time) {
    now_ += time;
    fold_.expire(now_);
  }
  void end() { fold_.flush(); }

  /// What has been shown since the last call.
  std::vector<std::string> shown() { return std::exchange(shown_, {}); }
  bool holds() const { return fold_.next().has_value(); }

 private:
  LineFold fold_;
  LineFold::Clock::time_point now_{};
  std::vector<std::string> shown_;
};

using Lines = std::vector<std::string>;

std::string ends(int rank) {
  return "dtrain: rank " + std::to_string(rank) + ": ends because rank 3 on host a failed: no";
}

}  // namespace

TEST_CASE("what all ranks say is one line at once, whichever says it first") {
  Fold fold(64);
  for (int i = 0; i < 64; ++i) {
    CHECK(fold.shown().empty());
    const int rank = (i * 37) % 64;
    fold.say(rank, ends(rank));
  }
  CHECK(fold.shown() == Lines{"[0-63] dtrain: ends because rank 3 on host a failed: no"});
  CHECK(!fold.holds());
}

TEST_CASE("what some say is one line at the end or when it has been held for long enough, and names them") {
  for (const bool at_end : {true, false}) {
    Fold fold(8);
    for (const int rank : {7, 0, 1, 2, 4, 5}) {
      fold.say(rank, ends(rank));
    }
    fold.after(LineFold::window - milliseconds(1));
    CHECK(fold.shown().empty());
    at_end ? fold.end() : fold.after(milliseconds(1));
    CHECK(fold.shown() == Lines{"[0-2,4-5,7] dtrain: ends because rank 3 on host a failed: no"});
  }
}

TEST_CASE("a sentence of one rank is shown as it was written") {
  Fold fold(4);
  fold.say(2, ends(2));
  fold.say(1, "dtrain: out of luck");
  fold.say(3, "dtrain: rank 1: is not me");
  fold.end();
  CHECK(fold.shown() == Lines{"[2] " + ends(2), "[1] dtrain: out of luck", "[3] dtrain: rank 1: is not me"});
}

TEST_CASE(
    "what is no sentence of dtrain's is shown at once, after what its rank has said before and before nothing else") {
  Fold fold(4);
  fold.say(0, "dtrain: first");
  fold.say(1, "dtrain: second");
  fold.say(2, "dtrain: third");
  CHECK(fold.shown().empty());
  fold.say(3, "ordinary");
  CHECK(fold.shown() == Lines{"[3] ordinary"});
  fold.say(1, "ordinary, too");
  CHECK(fold.shown() == Lines{"[0] dtrain: first", "[1] dtrain: second", "[1] ordinary, too"});
  fold.say(2, " dtrain: not at its beginning");
  CHECK(fold.shown() == Lines{"[2] dtrain: third", "[2]  dtrain: not at its beginning"});
}

TEST_CASE("the sentences of each rank keep their order") {
  Fold fold(2);
  fold.say(0, "dtrain: a");
  fold.say(0, "dtrain: b");
  fold.say(1, "dtrain: b");
  fold.say(1, "dtrain: a");
  fold.end();
  CHECK(fold.shown() == Lines{"[0] dtrain: a", "[0-1] dtrain: b", "[1] dtrain: a"});
  Fold same(2);
  for (const int rank : {0, 1}) {
    same.say(rank, "dtrain: a");
    same.say(rank, "dtrain: a");
    same.say(rank, "dtrain: b");
  }
  CHECK(same.shown() == Lines{"[0-1] dtrain: a", "[0-1] dtrain: a", "[0-1] dtrain: b"});
}

TEST_CASE("sentences that differ in more than who says them are not folded") {
  Fold fold(2);
  fold.say(0, "dtrain: rank 0: rank 0 is here");
  fold.say(1, "dtrain: rank 1: rank 1 is here");
  fold.say(0, "dtrain: x");
  fold.say(1, "dtrain: rank 1: x");
  fold.end();
  CHECK(fold.shown() == Lines{"[0] dtrain: rank 0: rank 0 is here", "[1] dtrain: rank 1: rank 1 is here",
                              "[0] dtrain: x", "[1] dtrain: rank 1: x"});
}

TEST_CASE("what is held is bounded, and one rank alone is never held up") {
  Fold fold(2);
  for (std::size_t i = 0; i < LineFold::most_held + 2; ++i) {
    fold.say(0, "dtrain: sentence " + std::to_string(i));
  }
  CHECK(fold.shown() == Lines{"[0] dtrain: sentence 0", "[0] dtrain: sentence 1"});
  fold.say(1, "dtrain: " + std::string(LineFold::longest_held, 'x'));
  CHECK(fold.shown().size() == 1);
  Fold alone(1);
  alone.say(5, "dtrain: said");
  CHECK(alone.shown() == Lines{"[5] dtrain: said"});
}
