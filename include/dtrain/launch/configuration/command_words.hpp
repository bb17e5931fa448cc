#pragma once
/// @file
/// Command words: splits a command line into words, with the quotes of a shell.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Pure. Blanks separate words. '...' is literal. In "...", a backslash before \, ", $ or ` is removed. Outside quotes,
/// a backslash makes the next character literal. Nothing is expanded. Example: `sh -c '"$@"' --` has the words `sh`,
/// `-c`, `"$@"`, `--`. @returns nullopt for a quote without an end
inline std::optional<std::vector<std::string>> command_words(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  constexpr std::string_view escaped_in_quotes = "\\\"$`";
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    const bool has_next = i + 1 < text.size();
    const bool escapes = letter == '\\' && has_next &&
                         (quote == '\0' || (quote == '"' && escaped_in_quotes.find(text[i + 1]) != text.npos));
    if (quote == '\0' && blanks.find(letter) != blanks.npos) {
      if (in_word) {
        words.push_back(word);
        word.clear();
      }
      in_word = false;
      continue;
    }
    in_word = true;
    if (letter == quote) {
      quote = '\0';
    } else if (quote == '\0' && (letter == '\'' || letter == '"')) {
      quote = letter;
    } else {
      i += escapes ? 1 : 0;
      word += text[i];
    }
  }
  if (quote != '\0') {
    return std::nullopt;
  }
  if (in_word) {
    words.push_back(word);
  }
  return words;
}

}  // namespace DTRAIN_NAMESPACE::launch
