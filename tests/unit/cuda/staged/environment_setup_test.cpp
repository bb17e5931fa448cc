#include "unit/cuda/prelude.hpp"

using StagedMemory = dtrain::backend::Staged<dtrain::backend::SharedMemory>;
using dtrain::backend::staged::warning_about;

namespace {

/// CUDA_DEVICE_MAX_CONNECTIONS as it was, at the end of a test.
class SavedVariable {
 public:
  SavedVariable() {
    if (const char* const now = std::getenv(name)) before_ = now;
  }
  SavedVariable(const SavedVariable&) = delete;
  SavedVariable& operator=(const SavedVariable&) = delete;
  ~SavedVariable() {
    if (before_) {
      ::setenv(name, before_->c_str(), 1);
    } else {
      ::unsetenv(name);
    }
  }

  static constexpr const char* name = "CUDA_DEVICE_MAX_CONNECTIONS";

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("a rank that stages asks for a hardware queue for each stream, unless the user says otherwise") {
  if (StagedMemory::visible_devices() == 0) return dtrain_test::skip("there is no device");
  const SavedVariable saved;
  const dtrain::identity::ProcessIdentity alone;
  std::optional<dtrain::rendezvous::Secret> secret;
  const auto begin = [&] {
    static_cast<void>(
        StagedMemory::pre_join_blocking(alone, secret, dtrain::Deadline::after(std::chrono::seconds(60))));
    const char* const now = std::getenv(SavedVariable::name);
    return std::string(now == nullptr ? "unset" : now);
  };
  ::unsetenv(SavedVariable::name);
  CHECK(begin() == "32");
  ::setenv(SavedVariable::name, "8", 1);
  CHECK(begin() == "8");
}

TEST_CASE("a variable that lets streams share hardware queues is warned of") {
  for (const std::string queues : {"1", "8", "31"}) {
    const std::string warning = warning_about({{SavedVariable::name, queues}});
    CHECK(warning.find("CUDA_DEVICE_MAX_CONNECTIONS=" + queues +
                       " is too low for backend::Staged; unset it (dtrain sets it to 32), or set it to 32. ") == 0);
  }
  for (const std::string fine : {"32", "64", "", "many"})
    CHECK(warning_about({{SavedVariable::name, fine}}).empty());
  CHECK(warning_about({}).empty());
}
