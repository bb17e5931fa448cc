#pragma once
/// @file
/// Records: serialization of structs that launchers exchange as store values; one describe() writes and reads.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Appends fields to a value.
class RecordWriter {
 public:
  void number(int value) { out_.i64(value); }
  void flag(bool value) { out_.u8(value ? 1 : 0); }
  void text(std::string_view value) { out_.string(value); }
  void numbers(const std::vector<int>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const int value : values) {
      number(value);
    }
  }
  void texts(const std::vector<std::string>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const std::string& value : values) {
      text(value);
    }
  }
  template <class Record>
  void maybe(const std::optional<Record>& record) {
    flag(record.has_value());
    if (record) {
      Record::describe(*record, *this);
    }
  }

  std::string take() const { return std::string(out_.characters()); }

 private:
  net::ByteWriter out_;
};

/// Reads fields. After the first invalid field, finished() stays false. Memory is allocated for bytes that are present,
/// not for lengths that the value claims.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) noexcept : in_(bytes) {}

  void number(int& value) {
    const std::int64_t found = in_.i64();
    const bool fits = found >= std::numeric_limits<int>::min() && found <= std::numeric_limits<int>::max();
    fits ? void(value = static_cast<int>(found)) : in_.fail();
  }
  void flag(bool& value) { value = in_.u8() != 0; }
  void text(std::string& value) { value = in_.string(in_.remaining()); }
  void numbers(std::vector<int>& values) {
    for (std::uint32_t left = in_.u32(); left > 0 && in_.ok(); --left) {
      number(values.emplace_back());
    }
  }
  void texts(std::vector<std::string>& values) {
    for (std::uint32_t left = in_.u32(); left > 0 && in_.ok(); --left) {
      text(values.emplace_back());
    }
  }
  template <class Record>
  void maybe(std::optional<Record>& record) {
    bool there = false;
    flag(there);
    if (there) {
      Record::describe(record.emplace(), *this);
    }
  }

  bool finished() const noexcept { return in_.finished(); }

 private:
  net::ByteReader in_;
};

/// The value of a record. A record is a struct with a static `describe(record, fields)`, which passes its fields in
/// order to a RecordWriter or RecordReader.
template <class Record>
std::string to_value(const Record& record) {
  RecordWriter writer;
  Record::describe(record, writer);
  return writer.take();
}

/// @throws Error (protocol) for bytes that are not a valid record of this type
template <class Record>
Record from_value(std::string_view value) {
  Record record;
  RecordReader reader(value);
  Record::describe(record, reader);
  if (!reader.finished()) {
    throw Error(Errc::protocol,
                "another launcher of this job wrote what this one cannot read; start the same program on every node");
  }
  return record;
}

}  // namespace DTRAIN_NAMESPACE::launch
