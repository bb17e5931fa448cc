#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "dtrain/core/crypto.hpp"
#include "support/denied_call.hpp"
#include "support/in_child.hpp"
#include "support/summary_file.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::NamedTensor;
using support::file_content;

namespace {

/// What a small training has: weights, an optimizer's velocity, the steps done.
struct Training {
  std::vector<float> weights = std::vector<float>(12);
  std::vector<double> velocity = std::vector<double>(3);
  std::int64_t steps = 0;

  std::vector<NamedTensor> state() {
    return {{"weights", dtrain::tensor_view(weights.data(), {3, 4})},
            {"velocity", dtrain::tensor_view(velocity.data(), {3})},
            {"steps", dtrain::tensor_view(&steps, {})},
            {"nothing", dtrain::tensor_view(weights.data(), {0, 7})}};
  }
  friend bool operator==(const Training&, const Training&) = default;
};

Training after(std::int64_t steps) {
  Training training;
  std::mt19937 random(static_cast<unsigned>(steps));
  for (float& weight : training.weights)
    weight = static_cast<float>(random()) / 1e9F;
  for (double& value : training.velocity)
    value = static_cast<double>(random());
  training.steps = steps;
  return training;
}

void put(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
}

/// The beginning of a file with this header.
std::string with_length(const std::string& header) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header;
}

/// The sentence with which loading `path` into `training` is refused; empty where it is not. Then no value has changed.
std::string refusal(const std::string& path, Training training = after(99)) {
  const Training before = training;
  try {
    static_cast<void>(read_checkpoint_file(path, training.state()));
  } catch (const dtrain::Error& error) {
    CHECK(training == before);
    return error.what();
  }
  return {};
}

/// A checkpoint can be loaded, and has these values.
void check_holds(const std::string& path, const Training& saved) {
  Training loaded;
  CHECK(read_checkpoint_file(path, loaded.state()));
  CHECK(loaded == saved);
}

mode_t permissions_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

/// Whether a signal seems to interrupt every second call of fsync, as it may on a file system of FUSE.
bool interrupts_syncs = false;
int interrupted_syncs = 0;
int good_syncs = 0;

}  // namespace

/// In place of the system library's.
extern "C" int fsync(int descriptor) {
  if (interrupts_syncs && interrupted_syncs == good_syncs) {
    ++interrupted_syncs;
    errno = EINTR;
    return -1;
  }
  good_syncs += interrupts_syncs ? 1 : 0;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

/// Whether rename renames and then fails, as on a network file system that lost the first answer.
bool loses_answers = false;

/// In place of the system library's.
extern "C" int rename(const char* from, const char* to) {
  const auto done = static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  if (done == 0 && loses_answers) errno = ENOENT;
  return loses_answers ? -1 : done;
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a file that has got its name is written, also where the system says that it has not") {
  loses_answers = true;
  const std::string sentence = support::sentence_of([&] { write_checkpoint_file(path, after(7).state()); });
  loses_answers = false;
  CHECK(sentence == "nothing was thrown");
  check_holds(path, after(7));
  CHECK(!exists(path + ".part"));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "what is written to a checkpoint is read back, bit for bit, and nothing else is left in its folder") {
  Training saved = after(7);
  write_checkpoint_file(path, saved.state());
  write_checkpoint_file(path, (saved = after(8)).state());
  check_holds(path, after(8));
  CHECK(!exists(path + ".part"));
  CHECK((permissions_of(path) & 0400) == 0400);
  write_checkpoint_file(path, {});
  CHECK(read_checkpoint_file(path, {}));
}

TEST_CASE("no file is no error, and leaves the values as they are") {
  const support::TemporaryDirectory folder;
  Training training = after(3);
  CHECK(!read_checkpoint_file(folder.path + "/none", training.state()));
  CHECK(training == after(3));
}

TEST_CASE("the bytes of a checkpoint are those that the format says: large elements first, and the digest of all") {
  const support::TemporaryDirectory folder;
  std::int32_t value = 258;
  double large = 1;
  std::string bytes = "ab";
  write_checkpoint_file(folder.path + "/c", std::vector<NamedTensor>{dtrain::NamedBytes{"b", bytes},
                                                                     {"x", dtrain::tensor_view(&value, {1, 1})},
                                                                     {"\"\n", dtrain::tensor_view(&large, {})}});
  std::string expected = R"({"__metadata__":{"format":"pt","dtrain.sha256":")" + std::string(64, '0') +
                         R"("},"\"\u000a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)" +
                         R"("x":{"dtype":"I32","shape":[1, 1],"data_offsets":[8,12]},)" +
                         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[12,14]}})";
  expected.append((8 - expected.size() % 8) % 8, ' ');
  expected = with_length(expected) + std::string("\0\0\0\0\0\0\xf0\x3f\2\1\0\0ab", 14);
  const std::string digest = dtrain::hex(dtrain::Sha256().update(expected).digest());
  expected.replace(expected.find("0000"), 64, digest);
  CHECK(file_content(folder.path + "/c") == expected);
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a checkpoint that is cut anywhere, longer, or of which any bit is flipped is refused") {
  Training saved = after(7);
  write_checkpoint_file(path, saved.state());
  const std::string whole = file_content(path);
  REQUIRE(refusal(path).empty());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(path, whole.substr(0, length));
    CAPTURE(length);
    CHECK(!refusal(path).empty());
  }
  put(path, whole + '\0');
  CHECK_CONTAINS(refusal(path), "its length, ");
  const std::size_t key = whole.find("dtrain.sha256");  // under another name it is no digest, and the content is whole
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    put(path, flipped);
    CAPTURE(bit);
    if (bit / 8 >= key && bit / 8 < key + 13 && refusal(path).empty()) {
      check_holds(path, saved);
    } else {
      CHECK(!refusal(path).empty());
    }
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "a refusal says what is wrong with the file") {
  Training saved = after(7);
  write_checkpoint_file(path, saved.state());
  const std::string whole = file_content(path);

  std::string changed = whole;
  changed[changed.size() - 40] ^= 1;
  put(path, changed);
  CHECK(refusal(path) == "the checkpoint " + path +
                             " cannot be loaded: its content does not have the digest in its metadata: it is damaged, "
                             "or was written again by a program that copied the metadata; load another file, or leave "
                             "dtrain.sha256 out there");
  put(path, "P5 28 28 255 and so on, as a picture begins");
  CHECK_CONTAINS(refusal(path), "it is no safetensors file; name another");
  put(path, "dtrain checkpoint 1\n" + whole.substr(20));
  CHECK_CONTAINS(refusal(path), "an earlier version of dtrain has written it, in a format of its own; go on with that");
  put(path, whole);
  CHECK_CONTAINS(refusal(folder.path), "it is no regular file");
  REQUIRE(::mkfifo((folder.path + "/pipe").c_str(), 0600) == 0);
  CHECK_CONTAINS(refusal(folder.path + "/pipe"), "it is no regular file");
}

TEST_CASE_FIXTURE(TemporaryFile, "a file without a digest is taken, and its tensors are found by name") {
  std::vector<float> one(1), two(2);
  const std::vector<NamedTensor> tensors{{"two", dtrain::tensor_view(two)}, {"one", dtrain::tensor_view(one)}};
  const std::string header =
      R"( {"one":{"shape":[1],"data_offsets":[0,4],"dtype":"F32"},"two":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  const float values[] = {1, 2, 3};
  put(path, with_length(header) + std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  CHECK(read_checkpoint_file(path, tensors));
  CHECK(one == std::vector<float>{1});
  CHECK(two == std::vector<float>{2, 3});
}

TEST_CASE_FIXTURE(TemporaryFile, "a file with other tensors is refused with the first difference") {
  Training saved = after(7);
  write_checkpoint_file(path, saved.state());
  const auto refused = [&](const std::vector<NamedTensor>& tensors) {
    return support::sentence_of([&] { static_cast<void>(read_checkpoint_file(path, tensors)); });
  };
  std::vector<NamedTensor> state = saved.state();
  std::swap(state[0], state[2]);
  CHECK(refused(state) == "nothing was thrown");
  state = saved.state();
  state[1].value.shape = {1, 3};
  CHECK_CONTAINS(refused(state), "its tensor 'velocity' is f64 [3], the program's is f64 [1, 3]; load it into what");
  state = saved.state();
  state[0].name = "weight";
  CHECK_CONTAINS(refused(state), "it has no tensor 'weight' (the nearest is 'weights'); load it into what");
  state = saved.state();
  state.pop_back();
  CHECK_CONTAINS(refused(state), "its tensor 'nothing' is none of the program's; load it");
  state[0].value.device.kind = dtrain::DeviceKind::cuda;
  CHECK_CONTAINS(refused(state), "copy it to host memory");
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a header that claims more than its file has room for is refused before memory is taken for it") {
  put(path, std::string("\xff\xe0\xf5\x05\0\0\0\0{}", 10));  // 99,999,999 bytes of header
  CHECK_CONTAINS(refusal(path), "its length, 10 bytes, is not what it says");
  put(path, std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));  // more than any has
  CHECK_CONTAINS(refusal(path), "it is no safetensors file");
  const std::string huge =
      R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,9223372036854775808]}})";
  put(path, with_length(huge));
  CHECK_CONTAINS(refusal(path), "its length, 98 bytes, is not what it says");
}

TEST_CASE_FIXTURE(TemporaryFile, "where the disk is full, writing is refused and the old checkpoint stays whole") {
  Training saved = after(7);
  write_checkpoint_file(path, saved.state());
  const auto whole_size = static_cast<rlim_t>(file_content(path).size());
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  for (rlim_t limit = 0; limit < whole_size; limit += 13) {
    const rlimit small{limit, old.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string sentence = support::sentence_of([&] { write_checkpoint_file(path, after(8).state()); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
    CAPTURE(limit);
    CHECK(sentence == "writing the file " + path +
                          " failed: File too large; files that this process writes are limited to " +
                          std::to_string(limit) +
                          " bytes (ulimit -f); what was there is unchanged; name a file in a folder that can be "
                          "written and has room");
    CHECK(!exists(path + ".part"));
  }
  check_holds(path, after(7));
}

TEST_CASE("a folder that is not there is an error that names the file") {
  Training saved = after(1);
  CHECK_THROWS_WITH_AS(
      write_checkpoint_file("/nowhere/at/all", saved.state()),
      "writing the file /nowhere/at/all failed: No such file or directory; what was there is unchanged; "
      "name a file in a folder that can be written and has room",
      dtrain::Error);
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "two writers of one file do not mix: the second is refused, and what a dead one left is taken over") {
  Training saved = after(5);
  {
    dtrain::ddp::AtomicFile first(path);
    CHECK_THROWS_AS(write_checkpoint_file(path, saved.state()), dtrain::Error);
    CHECK(exists(path + ".part"));
  }
  CHECK(!exists(path + ".part"));
  put(path + ".part", std::string(10000, 'x'));
  write_checkpoint_file(path, saved.state());
  check_holds(path, saved);
  put(folder.path + "/victim", "untouched");
  REQUIRE(::symlink((folder.path + "/victim").c_str(), (path + ".part").c_str()) == 0);
  CHECK_THROWS_AS(write_checkpoint_file(path, saved.state()), dtrain::Error);
  CHECK(file_content(folder.path + "/victim") == "untouched");
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a writer that is killed at any moment leaves a whole checkpoint, never an older one") {
  Training first = after(0);
  write_checkpoint_file(path, first.state());
  std::mt19937 random(1);
  std::int64_t newest = 0;
  for (int kill = 0; kill < 25; ++kill) {
    CAPTURE(kill);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (std::int64_t steps = newest + 1;; ++steps) {
        try {
          Training training = after(steps);
          write_checkpoint_file(path, training.state());
        } catch (...) {
          ::_exit(1);
        }
      }
    }
    ::usleep(static_cast<useconds_t>(random() % 8000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    Training loaded;
    REQUIRE(read_checkpoint_file(path, loaded.state()));
    CHECK(loaded == after(loaded.steps));
    CHECK(loaded.steps >= newest);
    newest = std::max(newest, loaded.steps);
  }
}

TEST_CASE("what is no regular file is not replaced by one") {
  const support::TemporaryDirectory folder;
  const std::string pipe = folder.path + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  int unnamed[2];
  REQUIRE(::pipe2(unnamed, O_CLOEXEC) == 0);
  const dtrain::Descriptor reads(unnamed[0]);
  const dtrain::Descriptor writes(unnamed[1]);
  const std::string descriptor = "/proc/self/fd/" + std::to_string(writes.get());  // what /dev/stdout may be
  Training training = after(1);
  for (const std::string& path : {pipe, folder.path, descriptor}) {
    CHECK_THROWS_WITH_AS(
        write_checkpoint_file(path, training.state()),
        ("writing the file " + path + " failed: it is no regular file, and would be " + "replaced by one; name another")
            .c_str(),
        dtrain::Error);
    CHECK(!exists(path + ".part"));
  }
  struct stat status {};
  REQUIRE(::lstat(pipe.c_str(), &status) == 0);
  CHECK(S_ISFIFO(status.st_mode));
}

TEST_CASE("a symbolic link stays one, and what it names is replaced") {
  const support::TemporaryDirectory folder;
  const std::string link = folder.path + "/latest";
  Training training = after(1);
  write_checkpoint_file(folder.path + "/run", training.state());
  REQUIRE(::symlink("run", link.c_str()) == 0);
  write_checkpoint_file(link, (training = after(2)).state());
  struct stat status {};
  REQUIRE(::lstat(link.c_str(), &status) == 0);
  CHECK(S_ISLNK(status.st_mode));
  check_holds(folder.path + "/run", after(2));
}

TEST_CASE("a symbolic link to a file that is yet to be written stays a link, and what it names is written") {
  const support::TemporaryDirectory folder;
  const std::string link = folder.path + "/latest";
  REQUIRE(::mkdir((folder.path + "/runs").c_str(), 0700) == 0);
  REQUIRE(::symlink("runs/newest", link.c_str()) == 0);
  REQUIRE(::symlink("../third", (folder.path + "/runs/newest").c_str()) == 0);
  Training training = after(3);
  for (int written = 0; written < 2; ++written) {
    write_checkpoint_file(link, training.state());
    for (const std::string& each : {link, folder.path + "/runs/newest"}) {
      struct stat status {};
      REQUIRE(::lstat(each.c_str(), &status) == 0);
      CHECK(S_ISLNK(status.st_mode));
    }
    check_holds(folder.path + "/third", after(3));
  }
  REQUIRE(::symlink("circle", (folder.path + "/circle").c_str()) == 0);
  CHECK_THROWS_WITH_AS(write_checkpoint_file(folder.path + "/circle", training.state()),
                       doctest::Contains("Too many levels of symbolic links"), dtrain::Error);
}

namespace {

/// What write_checkpoint_file does in a process for which system calls fail: the exit code of a child, and its Error.
struct Denied {
  int exit_code;  ///< 0: written, 1: an Error, 77: this machine denies no calls
  std::string sentence;
};

Denied write_denied(const std::string& path, const std::vector<std::pair<long, int>>& calls) {
  const support::TemporaryDirectory folder;
  const int code = support::in_child([&] {
    ::umask(022);
    for (const auto& [number, error] : calls) {
      if (!support::deny_call(number, error)) return 77;
    }
    Training training = after(4);
    try {
      write_checkpoint_file(path, training.state());
    } catch (const dtrain::Error& error) {
      put(folder.path + "/sentence", error.what());
      return 1;
    }
    return 0;
  });
  return {code, file_content(folder.path + "/sentence")};
}

}  // namespace

TEST_CASE("where chmod or fsync is refused, as on some mounts, a checkpoint is written with the mode of the mount") {
  for (const long number : {SYS_fchmod, SYS_fsync}) {
    for (const int error : {EPERM, EACCES, ENOSYS, EINVAL, EOPNOTSUPP}) {
      CAPTURE(number);
      CAPTURE(error);
      const support::TemporaryDirectory folder;
      const std::string path = folder.path + "/checkpoint";
      for (const mode_t mode : {mode_t{0644}, mode_t{0640}}) {  // of a new file, and of one that is replaced
        const Denied denied = write_denied(path, {{number, error}});
        if (denied.exit_code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
        CHECK(denied.exit_code == 0);
        CHECK(denied.sentence == "");
        CHECK(permissions_of(path) == mode);
        check_holds(path, after(4));
        CHECK(!exists(path + ".part"));
        REQUIRE(::chmod(path.c_str(), 0640) == 0);
      }
    }
  }
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "where neither chmod nor chown works, no other group may read what replaces a group's file" *
                      doctest::skip(::geteuid() != 0)) {
  put(path, "old");
  REQUIRE(::chown(path.c_str(), 0, 2345) == 0);
  REQUIRE(::chmod(path.c_str(), 0660) == 0);
  const Denied denied = write_denied(path, {{SYS_fchmod, EPERM}, {SYS_fchown, EPERM}});
  if (denied.exit_code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(denied.exit_code == 0);
  CHECK(permissions_of(path) == 0600);
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "where locks are refused, as on some mounts, no writer puts another one's half file under its name") {
  put(path, "old");
  const int code = support::in_child([&] {
    if (!support::deny_call(SYS_flock, ENOSYS)) return 77;
    const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
    AtomicFile first(path);
    first.write(bytes("first"));
    AtomicFile second(path);
    second.write(bytes("sec"));
    const dtrain::Error error = support::error_of([&] { first.commit(); });
    if (error.code() != make_error_code(dtrain::Errc::refused) || file_content(path) != "old") return 1;
    second.write(bytes("ond"));
    second.commit();
    return 0;
  });
  if (code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(code == 0);
  CHECK(file_content(path) == "second");
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a frozen writer of an earlier attempt neither locks out a later one nor replaces its file") {
  const auto living = std::make_shared<dtrain::FailureLatch>();
  AtomicFile frozen(path, {1, living});
  frozen.write(std::as_bytes(std::span("old", 3)));
  {
    AtomicFile later(path, {2, living});
    later.write(std::as_bytes(std::span("new", 3)));
    later.commit();
  }
  CHECK_ERROR(frozen.commit(), dtrain::Errc::refused, "another process has replaced it meanwhile");
  CHECK(file_content(path) == "new");
  CHECK_FALSE(exists(path + ".part.attempt-1"));
}

TEST_CASE_FIXTURE(TemporaryFile, "a file of an attempt that has failed replaces nothing, and leaves nothing") {
  put(path, "before");
  const auto failed = std::make_shared<dtrain::FailureLatch>();
  AtomicFile file(path, {3, failed});
  file.write(std::as_bytes(std::span("after", 5)));
  failed->report({dtrain::CauseKind::lost, 2, "host", "killed"});
  CHECK_THROWS_AS(file.commit(), dtrain::JobFailed);
  CHECK(file_content(path) == "before");
  CHECK_FALSE(exists(path + ".part.attempt-3"));
}

TEST_CASE_FIXTURE(TemporaryFile, "a writer stops when its attempt has failed") {
  const auto failure = std::make_shared<dtrain::FailureLatch>();
  AtomicFile file(path, {3, failure});
  file.write(std::vector<std::byte>(10));
  failure->set({dtrain::CauseKind::lost, 1, "a", "killed"});
  CHECK_THROWS_AS(file.write(std::vector<std::byte>(10)), dtrain::PeerLost);
  CHECK_FALSE(exists(path + ".part.attempt-3"));
}

TEST_CASE_FIXTURE(TemporaryFile, "what killed writers of other attempts have left is removed, and nothing else") {
  const auto living = std::make_shared<dtrain::FailureLatch>();
  const AtomicFile frozen(path, {2, living});
  const auto with = [this](const char* ending) { return path + ".part" + ending; };
  const auto killed = {".attempt-1", ".attempt-3", ".attempt-17"};  // the last of an earlier job
  const auto of_others = {".10", ".001", ".attempt-5x", ".attempt-05", ".attempt-"};
  for (const auto& endings : {killed, of_others})
    for (const char* const ending : endings)
      put(with(ending), "half");
  const AtomicFile file(path, {4, living});
  for (const char* const ending : killed)
    CHECK_FALSE(exists(with(ending)));
  for (const char* const ending : of_others)
    CHECK(exists(with(ending)));
  CHECK(exists(with(".attempt-2")));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a writer that continues after its attempt has failed removes no other writer's file") {
  put(path + ".part.attempt-3", "half");
  const auto failed = std::make_shared<dtrain::FailureLatch>();
  failed->report({dtrain::CauseKind::lost, 1, "a", "killed"});
  CHECK_THROWS_AS(AtomicFile(path, {2, failed}), dtrain::PeerLost);
  CHECK(exists(path + ".part.attempt-3"));
}

TEST_CASE_FIXTURE(TemporaryFile, "where locks are refused, no writer removes the file of another attempt") {
  put(path + ".part.attempt-3", "half");
  const int code = support::in_child([&] {
    if (!support::deny_call(SYS_flock, ENOSYS)) return 77;
    AtomicFile(path, {4, std::make_shared<dtrain::FailureLatch>()}).commit();
    return 0;
  });
  if (code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(code == 0);
  CHECK(exists(path + ".part.attempt-3"));
}

TEST_CASE_FIXTURE(TemporaryFile, "without fsync, a write that fails when the file is closed is an error") {
  put(path, "old");
  const Denied denied = write_denied(path, {{SYS_fsync, ENOSYS}, {SYS_close, ENOSPC}});
  if (denied.exit_code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(denied.exit_code == 1);
  CHECK_CONTAINS(denied.sentence, "No space left on device");
  CHECK(file_content(path) == "old");
}

TEST_CASE_FIXTURE(TemporaryFile, "an fsync that a signal interrupts is repeated, of the file and of its folder") {
  interrupts_syncs = true;
  CHECK_NOTHROW(write_checkpoint_file(path, after(4).state()));
  interrupts_syncs = false;
  CHECK(interrupted_syncs == 2);
  CHECK(good_syncs == 2);
  check_holds(path, after(4));
}

TEST_CASE_FIXTURE(TemporaryFile, "an fsync that fails, rather than is refused, is an error") {
  const Denied denied = write_denied(path, {{SYS_fsync, EIO}});
  if (denied.exit_code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(denied.exit_code == 1);
  CHECK(!exists(path));
  CHECK(!exists(path + ".part"));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a file that is mounted itself cannot be replaced, and the sentence says to mount its folder") {
  for (const auto& [error, remedy] :
       std::vector<std::pair<int, std::string>>{{EBUSY, "such a file cannot be replaced: mount its folder"},
                                                {EXDEV, "such a file cannot be replaced: mount its folder"},
                                                {ENOSYS, "name a file in a folder whose files can be renamed"}}) {
    put(path, "old");
    const Denied denied = write_denied(path, {{SYS_rename, error}, {SYS_renameat, error}, {SYS_renameat2, error}});
    if (denied.exit_code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
    CAPTURE(denied.sentence);
    CHECK(denied.exit_code == 1);
    CHECK(denied.sentence.starts_with("writing the file " + path + " failed: renaming " + path + ".part: "));
    CHECK_CONTAINS(denied.sentence, remedy);
    CHECK(file_content(path) == "old");
    CHECK(!exists(path + ".part"));
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "who may read a checkpoint may read the one that replaces it, and nobody else") {
  Training training = after(1);
  for (const mode_t mode : {mode_t{0600}, mode_t{0664}, mode_t{0440}}) {
    write_checkpoint_file(path, training.state());
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    {
      const AtomicFile file(path);
      CHECK(permissions_of(path + ".part") == 0600);  // its writer's alone, until it is whole
    }
    write_checkpoint_file(path, training.state());
    CHECK(permissions_of(path) == mode);
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "nobody but its writer may open a checkpoint that is being written") {
  const std::string part = path + ".part";
  struct Umask {
    explicit Umask(mode_t mask) : before(::umask(mask)) {}
    ~Umask() { ::umask(before); }
    mode_t before;
  };
  const Umask umask(022);
  {
    AtomicFile file(path);
    CHECK(permissions_of(part) == 0600);
    file.commit();
  }
  CHECK(permissions_of(path) == 0644);  // what the umask leaves a new file

  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  std::atomic<bool> done{false};
  std::atomic<int> looks{0};
  std::atomic<int> open_to_others{0};
  std::thread watcher([&] {
    struct stat seen {};
    while (!done) {
      if (::stat(part.c_str(), &seen) != 0) continue;
      ++looks;
      if ((seen.st_mode & 0077) != 0) ++open_to_others;
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (looks < 500 && std::chrono::steady_clock::now() < end) {
    AtomicFile file(path);
    file.commit();
  }
  done = true;
  watcher.join();
  CHECK(looks > 0);
  CHECK(open_to_others == 0);
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "what a dead writer left is removed, not written to: not by another name, nor by who has it open") {
  const std::string other_name = folder.path + "/other name";
  put(path + ".part", "left");
  REQUIRE(::link((path + ".part").c_str(), other_name.c_str()) == 0);
  Training saved = after(5);
  write_checkpoint_file(path, saved.state());
  CHECK(file_content(other_name) == "left");
  check_holds(path, saved);
}

TEST_CASE_FIXTURE(TemporaryFile, "a part of another user is refused, and stays" * doctest::skip(::geteuid() != 0)) {
  put(path + ".part", "somebody else's");
  REQUIRE(::chown((path + ".part").c_str(), 65534, 65534) == 0);
  Training saved = after(5);
  CHECK_THROWS_WITH_AS(write_checkpoint_file(path, saved.state()),
                       ("writing the file " + path + " failed: " + path + ".part is of user 65534, this process of " +
                        "user 0; remove it if no process is writing it")
                           .c_str(),
                       dtrain::Error);
  CHECK(file_content(path + ".part") == "somebody else's");
  CHECK(!exists(path));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "whose file a checkpoint is, his it stays when root writes it" * doctest::skip(::geteuid() != 0)) {
  put(path, "old");
  REQUIRE(::chown(path.c_str(), 1234, 2345) == 0);
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  Training saved = after(5);
  for (const bool is_left_over : {false, true}) {
    CAPTURE(is_left_over);
    if (is_left_over) {  // by a writer that was killed when it had given the file away
      put(path + ".part", "left");
      REQUIRE(::chown((path + ".part").c_str(), 1234, 2345) == 0);
    }
    write_checkpoint_file(path, saved.state());
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK(status.st_uid == 1234);
    CHECK(status.st_gid == 2345);
    CHECK((status.st_mode & 0777) == 0640);
  }
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a name with a zero byte names no file, and least of all the one that it begins with") {
  put(path, "somebody else's");
  const std::string name = path + std::string("\0.checkpoint", 12);
  Training training = after(1);
  CHECK_ERROR(write_checkpoint_file(name, training.state()), Errc::invalid_argument, "has a zero byte in it");
  CHECK_CONTAINS(refusal(name), "/file\\x00.checkpoint has a zero byte in it");
  CHECK(file_content(path) == "somebody else's");
}

TEST_CASE("what could not be read again is not written") {
  const support::TemporaryDirectory folder;
  const std::vector<NamedTensor> nothing(1);
  CHECK_THROWS_WITH_AS(write_checkpoint_file(folder.path + "/c", nothing),
                       "tensor 0 of a checkpoint has no memory; allocate it before", dtrain::Error);
  const auto refused = [&](const char* first, const char* second) {
    float value = 1;
    const dtrain::TensorView view = dtrain::tensor_view(&value, {});
    return support::sentence_of([&] {
      write_checkpoint_file(folder.path + "/c", std::vector<NamedTensor>{{first, view}, {second, view}});
    });
  };
  CHECK(refused("w", "w") ==
        "a checkpoint cannot have 'w' as the name of two tensors; give each tensor a name of its own");
  CHECK(refused("w", "__metadata__") ==
        "a checkpoint cannot have '__metadata__' as the name of a tensor; give each tensor a name of its own");
  CHECK(refused("w", "\xff") == "the name '\\xff' of a checkpoint's tensor is not UTF-8; give it another");
  CHECK(!exists(folder.path + "/c"));
  const std::vector<dtrain::ddp::ParameterSignature> many(26'000, {std::string(1000, 'n'), {}, DType::f32, {}});
  std::vector<dtrain::ddp::ParameterSignature> named = many;
  for (std::size_t i = 0; i < named.size(); ++i)
    named[i].name += std::to_string(i);
  const std::vector<dtrain::ddp::FileTensor> list = dtrain::ddp::file_tensors(named);
  CHECK_ERROR(static_cast<void>(dtrain::ddp::safetensors_header(list, dtrain::ddp::safetensors_order(list))),
              Errc::limit, "the names and shapes of 26000 tensors take ");
}

TEST_CASE("a shared tensor is written once, with its other names in the metadata, and read by any of them") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/shared";
  std::vector<float> values{1, 2};
  std::vector<NamedTensor> tensors{{"head", dtrain::tensor_view(values), nullptr, {"format", "embed\n", "tail"}}};
  dtrain::ddp::write_checkpoint_file(path, tensors);
  CHECK(dtrain::ddp::safetensors_names(path) == std::vector<std::string>{"head"});
  CHECK_CONTAINS(file_content(path), R"(","embed\u000a":"head","tail":"head"},"head":{"dtype":"F32",)");
  for (const std::string name : {"embed\n", "tail", "head"}) {
    CAPTURE(name);
    values = {3, 4};
    const std::vector<NamedTensor> alone{{name, dtrain::tensor_view(values)}};
    dtrain::ddp::write_checkpoint_file(path, alone);
    values = {0, 0};
    CHECK(read_checkpoint_file(path, tensors));
    CHECK(values == std::vector<float>{3, 4});
  }
  std::vector<float> others{5, 6};  // a program that does not share them: the first name counts
  const std::vector<NamedTensor> both{{"tail", dtrain::tensor_view(others)}, {"embed\n", dtrain::tensor_view(values)}};
  dtrain::ddp::write_checkpoint_file(path, both);
  CHECK(read_checkpoint_file(path, tensors));
  CHECK(values == std::vector<float>{3, 4});
  const dtrain::ddp::SafetensorsOptions options{.rename = [](const std::string& name) { return "model." + name; }};
  const std::vector<NamedTensor> prefixed{{"model.tail", dtrain::tensor_view(others)}};
  dtrain::ddp::write_checkpoint_file(path, prefixed);
  CHECK(dtrain::ddp::read_checkpoint_file(path, tensors, {}, &options));
  CHECK(values == std::vector<float>{5, 6});
  tensors[0].other_names = {"\xff"};
  CHECK_ERROR(dtrain::ddp::write_checkpoint_file(path, tensors), Errc::invalid_argument,
              "the name '\\xff' of a checkpoint's tensor is not UTF-8; give it another");
}

TEST_CASE("elements of types without a DType have their type in the file") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/types";
  std::vector<std::uint8_t> shorts{1, 0, 2, 0, 3, 0}, flags{1, 0}, complex(8, 7);
  const auto list = [&](std::string_view type) {
    return std::vector<NamedTensor>{{"flags", dtrain::tensor_view(flags.data(), {2, 1}), nullptr, {}, "BOOL"},
                                    {"shorts", dtrain::tensor_view(shorts.data(), {1, 3, 2}), nullptr, {}, type},
                                    {"complex", dtrain::tensor_view(complex.data(), {8}), nullptr, {}, "C64"}};
  };
  dtrain::ddp::write_checkpoint_file(path, list("I16"));
  CHECK_CONTAINS(file_content(path), R"("complex":{"dtype":"C64","shape":[],"data_offsets":[0,8]},)"
                                     R"("shorts":{"dtype":"I16","shape":[1, 3],"data_offsets":[8,14]},)"
                                     R"("flags":{"dtype":"BOOL","shape":[2],"data_offsets":[14,16]})");
  const auto saved = std::tuple(shorts, flags, complex);
  shorts.assign(6, 0), flags.assign(2, 9), complex.assign(8, 0);
  CHECK(read_checkpoint_file(path, list("I16")));
  CHECK(std::tuple(shorts, flags, complex) == saved);
  CHECK_ERROR(read_checkpoint_file(path, list("U16")), Errc::protocol,
              "its tensor 'shorts' is I16 [1, 3], the program's is U16 [1, 3]; load it into what it was saved from, or "
              "name another file");
  for (const std::string_view type : {"I8", "F4", "F32"}) {
    CAPTURE(type);
    CHECK_ERROR(dtrain::ddp::write_checkpoint_file(path, list(type)), Errc::invalid_argument,
                "tensor 'shorts' of a checkpoint is u8 [1, 3, 2], and its file_type is '" + std::string(type) + "'; ");
  }
  dtrain::ddp::write_checkpoint_file(path, list("I16"));
  std::string other = file_content(path);
  other.replace(other.find("I16"), 3, "I8 ");
  put(path, other);
  CHECK_ERROR(read_checkpoint_file(path, list("I16")), Errc::protocol, "the program's is I16 [1, 3]");
  other.replace(other.find("I8 "), 3, "C64");  // of other bytes than its extents
  put(path, other);
  CHECK_ERROR(read_checkpoint_file(path, list("I16")), Errc::protocol, "has other data_offsets than its dtype");
}
