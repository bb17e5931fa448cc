#pragma once
// A locale whose decimal point is a comma, made for a test where the system has none.

#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <string>

#include "support/temporary_directory.hpp"

namespace support {

/// Makes de_DE.UTF-8 in a folder of its own, which glibc finds by LOCPATH.
struct GermanLocale {
  GermanLocale() {
    for (const char* const program : {"/usr/bin/localedef", "/bin/localedef"}) {
      if (::access(program, X_OK) == 0) {
        const std::string command =
            std::string(program) + " -i de_DE -f UTF-8 '" + folder.path + "/" + name + "' >/dev/null 2>&1";
        static_cast<void>(!std::system(command.c_str()));  // its warnings count as failures, too
        break;
      }
    }
    if (::access((folder.path + "/" + name + "/LC_NUMERIC").c_str(), R_OK) != 0) {
      problem = "localedef, or its sources of de_DE (Debian's package locales), are not installed";
    }
  }

  const std::string name = "de_DE.UTF-8";
  TemporaryDirectory folder;
  std::string problem;  ///< empty if the locale is there
};

/// Sets the process's locale to one, and back.
class ScopedLocale {
 public:
  explicit ScopedLocale(const GermanLocale& locale) {
    ::setenv("LOCPATH", locale.folder.path.c_str(), 1);
    is_set = std::setlocale(LC_ALL, locale.name.c_str()) != nullptr;
  }
  ScopedLocale(const ScopedLocale&) = delete;
  ScopedLocale& operator=(const ScopedLocale&) = delete;
  ~ScopedLocale() {
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }

  bool is_set = false;
};

}  // namespace support
