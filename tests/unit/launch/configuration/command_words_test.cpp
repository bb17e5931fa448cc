#include "unit/launch/prelude.hpp"

TEST_CASE("words are separated by blanks, and quotes hold them together as in a shell") {
  CHECK(command_words("valgrind -q --") == Words{"valgrind", "-q", "--"});
  CHECK(command_words("  a\tb\n c ") == Words{"a", "b", "c"});
  CHECK(command_words("sh -c '\"$@\"' --") == Words{"sh", "-c", "\"$@\"", "--"});
  CHECK(command_words("gdb -ex 'info args' --args") == Words{"gdb", "-ex", "info args", "--args"});
  CHECK(command_words("a'b c'd\"e f\"") == Words{"ab cde f"});
  CHECK(command_words("'' \"\"") == Words{"", ""});
  CHECK(command_words("") == Words{});
}

TEST_CASE("a backslash is literal in single quotes, and elsewhere makes literal what follows") {
  CHECK(command_words("a\\ b \\'c \\\\") == Words{"a b", "'c", "\\"});
  CHECK(command_words(R"("a\"b\\c\$d\`e\n")") == Words{"a\"b\\c$d`e\\n"});
  CHECK(command_words(R"('a\b')") == Words{"a\\b"});
  CHECK(command_words("a\\") == Words{"a\\"});
}

TEST_CASE("a quote without an end is no command") {
  CHECK(command_words("sh -c 'x") == std::nullopt);
  CHECK(command_words("\"a\\\"") == std::nullopt);
}
