#include "examples/shared/atomic_file.hpp"

#include <sys/stat.h>

#include "unit/examples/prelude.hpp"

TEST_CASE("a file is replaced whole, is readable for others, and leaves nothing beside it") {
  std::string folder = "/tmp/dtrain-file-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/result";
  const mode_t before = ::umask(022);
  for (const std::string text : {"the first, longer content", "second"}) {
    shared::write_file_atomically(path, std::as_bytes(std::span(text)));
    std::ifstream in(path, std::ios::binary);
    CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == text);
  }
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0644);
  CHECK(::unlink(path.c_str()) == 0);
  CHECK(::rmdir(folder.c_str()) == 0);  // fails if a temporary file was left
}

TEST_CASE("a file that cannot be written is an error that names it") {
  const std::array<std::byte, 1> bytes{};
  CHECK_THROWS_WITH_AS(
      shared::write_file_atomically("/nonexistent/x", bytes),
      "writing the file /nonexistent/x failed: No such file or directory; what was there is unchanged; "
      "name a file in a folder that can be written and has room",
      dtrain::Error);
}
