#include "unit/launch/prelude.hpp"

namespace {

void append(std::vector<std::byte>& notes, std::uint32_t type, const std::string& name, const std::string& text) {
  const std::array<std::uint32_t, 3> head{static_cast<std::uint32_t>(name.size()),
                                          static_cast<std::uint32_t>(text.size()), type};
  const auto* const bytes = reinterpret_cast<const std::byte*>(head.data());
  notes.insert(notes.end(), bytes, bytes + sizeof head);
  for (const std::string& part : {name, text}) {
    for (const char each : part) {
      notes.push_back(static_cast<std::byte>(each));
    }
    notes.resize((notes.size() + 3) / 4 * 4);
  }
}

const std::string gnu("GNU\0", 4);

}  // namespace

TEST_CASE("the build id is the note of that type and owner, wherever it stands") {
  std::vector<std::byte> notes;
  append(notes, NT_GNU_BUILD_ID, std::string("ABC\0", 4), "no");
  append(notes, NT_GNU_ABI_TAG, gnu, "linux");
  append(notes, NT_GNU_BUILD_ID, gnu, "\x01\xff\x20");
  CHECK(build_id_in(notes) == "01ff20");
}

TEST_CASE("notes that are cut short or too long give no build id") {
  std::vector<std::byte> notes;
  append(notes, NT_GNU_BUILD_ID, gnu, std::string(20, 'x'));
  for (std::size_t size = 0; size < notes.size(); ++size) {
    CAPTURE(size);
    CHECK(build_id_in(std::span(notes).first(size)).empty());
  }
  notes.clear();
  append(notes, NT_GNU_BUILD_ID, gnu, std::string(65, 'x'));
  CHECK(build_id_in(notes).empty());
  const std::array<std::uint32_t, 3> huge{0xffffffffU, 0xffffffffU, NT_GNU_BUILD_ID};
  CHECK(build_id_in(std::as_bytes(std::span(huge))).empty());
}

TEST_CASE("this program has a name and a build, the same each time") {
  CHECK(dtrain::launch::own_program_name().find('/') == std::string::npos);
  CHECK(dtrain::launch::own_program_name() != "a program");
  const std::string build = dtrain::launch::own_build();
  CHECK((build.find("build id ") == 0 || build.find("digest ") == 0));
  CHECK(build == dtrain::launch::own_build());
  CHECK(dtrain::launch::detail::digest_of("/proc/self/exe").size() == 64);
  CHECK(dtrain::launch::detail::digest_of("/no/such/file").empty());
}
