// Checkpoints that another process replaces, renames or copies while they are loaded, and the advice of each refusal:
// none removes a file.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "support/captured_stderr.hpp"
#include "unit/public_interface/prelude.hpp"

namespace replaced_checkpoint_test {

/// Called before a rank reads from a file. @returns the errno of the read; 0: it reads
std::function<int(const std::string& file)> before_read;
std::mutex before_read_mutex;

int errno_of_read(int descriptor) {
  const std::lock_guard lock(before_read_mutex);
  if (!before_read) return 0;
  std::error_code no_link;
  const auto file = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), no_link);
  return before_read(file.string());
}

}  // namespace replaced_checkpoint_test

/// In place of the system library's.
extern "C" ssize_t pread(int descriptor, void* bytes, std::size_t count, off_t offset) {
  if (const int error = replaced_checkpoint_test::errno_of_read(descriptor)) {
    errno = error;
    return -1;
  }
  return static_cast<ssize_t>(::syscall(SYS_pread64, descriptor, bytes, count, offset));
}

namespace replaced_checkpoint_test {

const optimizers::Momentum rule{.rate = 0.5F};

/// While it lives, `before` is called before each read of a checkpoint.
struct ReadHook {
  explicit ReadHook(std::function<int(const std::string&)> before) { set(std::move(before)); }
  ReadHook(ReadHook&&) = delete;
  ~ReadHook() { set(nullptr); }
  static void set(std::function<int(const std::string&)> before) {
    const std::lock_guard lock(before_read_mutex);
    before_read = std::move(before);
  }
};

/// A training of so many steps whose gradients are 1 saves once. @param sharded with the optimizer's state
void save(const std::string& path, std::int64_t steps, bool sharded = true) {
  run_well(2, [&](const Group& group) {
    Model model({3, 500});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, rule};
    for (std::int64_t step = 0; step < steps; ++step)
      ddp.backward([&](const Ready& ready) { fill_gradients(model, ready, 1); }, optimizer);
    auto tensors = dtrain::parameter_values(model.list);
    tensors.push_back({"step", dtrain::tensor_view(&steps, {})});
    if (sharded) {
      dtrain::save_checkpoint(group, path, tensors, optimizer);
    } else {
      dtrain::save_checkpoint(group, path, tensors);
    }
  });
}

/// What two ranks have after a load of `path`.
struct Loaded {
  std::string error;       ///< the first that a rank threw
  std::int64_t step = -1;  ///< -1: a rank found no file, or the ranks have different ones
};

Loaded load(const std::string& path, bool sharded = true) {
  std::mutex mutex;
  std::vector<Loaded> all;
  run_well(2, [&](const Group& group) {
    Model model({3, 500});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, rule};
    Loaded own;
    std::int64_t step = 0;
    auto tensors = dtrain::parameter_values(model.list);
    tensors.push_back({"step", dtrain::tensor_view(&step, {})});
    own.error = sentence_of([&] {
      const bool is_there = sharded ? dtrain::load_checkpoint(group, path, tensors, optimizer)
                                    : dtrain::load_checkpoint(group, path, tensors);
      const bool is_whole = !sharded || static_cast<std::int64_t>(optimizer.steps()) == step;
      own.step = is_there && is_whole ? step : -1;
    });
    group.barrier();  // the job has not failed
    const std::lock_guard lock(mutex);
    all.push_back(own);
  });
  CHECK(all[0].error == all[1].error);
  return all[0].step == all[1].step ? all[0] : Loaded{all[0].error, -1};
}

/// The files of a checkpoint: all that lie in its folder.
void move_files(const TemporaryDirectory& from, const TemporaryDirectory& to) {
  for (const auto& file : std::filesystem::directory_iterator(from.path))
    std::filesystem::rename(file.path(), to.path + "/" + file.path().filename().string());
}

/// Checkpoints after 1, 2 ... steps, each of which replaces the former one as save_checkpoint does: the shard files of
/// the former one are removed at once.
struct Replacements {
  explicit Replacements(int checkpoints) : next(static_cast<std::size_t>(checkpoints)) {
    for (std::size_t i = 0; i < next.size(); ++i)
      save(next[i].path + "/state", static_cast<std::int64_t>(i) + 1);
    replace();
  }

  void replace() {
    for (const auto& file : std::filesystem::directory_iterator(folder.path)) {
      if (file.path().string() != path) std::filesystem::remove(file.path());
    }
    move_files(next[number++], folder);
  }

  std::vector<TemporaryDirectory> next;
  std::size_t number = 0;
  TemporaryDirectory folder;
  std::string path = folder.path + "/state";
};

TEST_CASE("a sharded checkpoint that is replaced between its index and its shard files is loaded as the new one") {
  Replacements checkpoints(3);
  int left = 2;
  const ReadHook hook([&](const std::string& file) {
    // The index is open, so the load goes on with it.
    if (file == checkpoints.path && left > 0) {
      --left;
      checkpoints.replace();
    }
    return 0;
  });
  const Loaded loaded = load(checkpoints.path);
  CHECK(loaded.error == "nothing was thrown");
  CHECK(loaded.step == 3);
  CHECK(left == 0);
}

TEST_CASE("a sharded checkpoint that is replaced at each load ends the load with the advice to load it again") {
  Replacements checkpoints(1);
  TemporaryDirectory other;
  save(other.path + "/state", 2);
  std::filesystem::copy(checkpoints.path, checkpoints.folder.path + "/first");
  std::filesystem::copy(other.path + "/state", checkpoints.folder.path + "/second");
  for (const auto& file : std::filesystem::directory_iterator(checkpoints.folder.path)) {
    if (file.path().string().find(".shard-") != std::string::npos) std::filesystem::remove(file.path());
  }
  std::atomic<int> loads{0};
  const ReadHook hook([&](const std::string& file) {
    if (file == checkpoints.path) {  // several reads for each load
      std::filesystem::copy(checkpoints.folder.path + (++loads % 2 == 0 ? "/first" : "/second"),
                            checkpoints.path + ".new");
      std::filesystem::rename(checkpoints.path + ".new", checkpoints.path);
    }
    return 0;
  });
  const Loaded loaded = load(checkpoints.path);
  CHECK_CONTAINS(loaded.error, "is missing; ", "another job may have replaced the checkpoint meanwhile: load it again");
}

TEST_CASE("a load whose checkpoint is removed meanwhile is an error: its values are not those of a first start") {
  Replacements checkpoints(1);
  const ReadHook hook([&](const std::string& file) {
    if (file == checkpoints.path) std::filesystem::remove_all(checkpoints.folder.path);
    return 0;
  });
  const Loaded loaded = load(checkpoints.path);
  CHECK_CONTAINS(loaded.error, "is missing; ", "load it again");
}

TEST_CASE("a missing shard file is named with rank and host, and no advice removes the checkpoint") {
  const TemporaryFile file;
  save(file.path, 1);
  const std::string host = dtrain::rendezvous::host_identity().name;
  for (const auto& each : std::filesystem::directory_iterator(file.folder.path)) {
    if (each.path().string().ends_with("-1")) std::filesystem::remove(each.path());
  }
  const Loaded loaded = load(file.path);
  CHECK_CONTAINS(loaded.error,
                 "the checkpoint " + file.path + " cannot be loaded: its shard file " + file.path + ".shard-",
                 "-1 is missing; shard files lie beside their checkpoint, in a folder that every rank reads, ",
                 " (on rank 0 on host " + host + ")");
  CHECK(loaded.error.find("remove") == std::string::npos);
  CHECK(std::filesystem::exists(file.path));
}

TEST_CASE("a checkpoint that was renamed without its shard files gets the advice to link them, which mends it") {
  const TemporaryDirectory folder;
  const std::string former = folder.path + "/state";
  const std::string best = folder.path + "/best";
  save(former, 2);
  std::filesystem::rename(former, best);
  const Loaded refused = load(best);
  CHECK_CONTAINS(refused.error, "the checkpoint " + best + " cannot be loaded: its shard file " + best + ".shard-",
                 "was renamed or copied from one whose shard file " + former + ".shard-",
                 "; give each shard file its new name, too");
  const std::size_t command = refused.error.find("ln '");
  REQUIRE(command != std::string::npos);
  const std::string first = refused.error.substr(command, refused.error.rfind('\'') + 1 - command);
  std::string second = first;
  for (std::size_t at = 0; (at = second.find("-0'", at)) != std::string::npos;)
    second.replace(at, 3, "-1'");
  REQUIRE(std::system((first + " && " + second).c_str()) == 0);
  CHECK(load(best).step == 2);
}

TEST_CASE("a checkpoint with the state of a ShardedOptimizer and one without are named as such") {
  const TemporaryFile file;
  save(file.path, 1, false);
  CHECK_CONTAINS(load(file.path).error,
                 "it was saved without a ShardedOptimizer; load it without one, or name another file");
  save(file.path, 1);
  CHECK_CONTAINS(load(file.path, false).error,
                 "it was saved with a ShardedOptimizer; load it with one, as the last argument");
}

TEST_CASE("a file that another host has replaced is opened anew once") {
  const TemporaryFile file;
  save(file.path, 2);
  for (const std::string& end : {std::string("/file"), std::string("-0"), std::string("-1")}) {
    CAPTURE(end);
    bool is_stale = true;
    bool stays_stale = false;
    const ReadHook hook([&](const std::string& name) {
      return name.ends_with(end) && (std::exchange(is_stale, false) || stays_stale) ? ESTALE : 0;
    });
    const Loaded loaded = load(file.path);
    CHECK(loaded.error == "nothing was thrown");
    CHECK(loaded.step == 2);
    CHECK(!is_stale);
    stays_stale = true;
    CHECK_CONTAINS(load(file.path).error, "reading the checkpoint " + file.path,
                   end + " failed: Stale file handle; another process has replaced the file meanwhile; load it again");
  }
}

TEST_CASE("a checkpoint in a folder that does not exist is no file, and the log names the folder") {
  const TemporaryDirectory folder;
  support::CapturedStderr captured;
  CHECK(load(folder.path + "/none/state").step == -1);
  CHECK(load(folder.path + "/none/state", false).step == -1);
  const std::string text = captured.text();
  CHECK_CONTAINS(text, "there is no checkpoint " + folder.path + "/none/state to load, nor its folder " + folder.path +
                           "/none/; ");
  support::CapturedStderr of_a_first_start;
  CHECK(load(folder.path + "/state").step == -1);
  CHECK(of_a_first_start.text() == "");
}

}  // namespace replaced_checkpoint_test
