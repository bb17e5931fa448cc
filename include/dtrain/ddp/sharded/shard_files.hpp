#pragma once
/// @file
/// Shard files: each rank's share of a sharded optimizer's state, named by a checkpoint; any number of ranks reads
/// them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/sharded/shards.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Index of the shard files, as four more tensors of a checkpoint. Lifetime: tensors() refers to the object.
struct ShardIndex {
  std::int64_t id = 0;     ///< id of one call of save_checkpoint; part of the files' names
  std::int64_t files = 0;  ///< the number of the ranks that saved
  std::int64_t steps = 0;  ///< updates
  std::array<std::byte, sizeof(Sha256Digest)>
      model{};  ///< digest of the parameters' names, shapes and types, and of the number of arrays

  /// Index of this optimizer's state, without id and files.
  static ShardIndex of(const Shards& shares);

  std::vector<NamedTensor> tensors();

  /// "PATH.shard-000000000000002a-3" @param rank of the job that saved
  std::string file_name(const std::string& path, std::int64_t rank) const;
};

/// Reads this rank's state from the files of any number of ranks. All ranks together check the digests of all files.
/// Blocking: the file system.
/// @throws Error (protocol) for files that are damaged, or of another optimizer; (ENOENT) for a missing file, for
/// load_past_replacement; the state is undefined after an error
void read_shard_files(const std::string& path, const ShardIndex& index, Shards& shares, int rank, int ranks,
                      TensorAccess&& access = {});

/// Memory of the whole state, not shared out: [arrays][parameters], of all elements of each parameter, f32 or f64.
using WholeState = std::vector<std::vector<BufferView>>;

/// Reads the whole state of an optimizer from its shard files. The f32 weights of a 16-bit model, which are one more
/// array, are left out. Blocking: the file system. @pre the rule has at least one state array
/// @throws Error (protocol) for files that are damaged, or of other parameters or arrays; (ENOENT) for a missing file
void read_whole_state(const std::string& path, const ShardIndex& index, const WholeState& state);

namespace detail {

/// Calls `load(index)`, which loads a checkpoint and its index, and then its shard files. Another job may replace the
/// checkpoint between the two, and removes the former shard files: then `load(index)` is called again, as long as the
/// id has changed, and at most 100 times. Collective if `load` is, whose results are the same on every rank.
/// @returns the result of `load`: false if there is no checkpoint
/// @throws as `load`; Error (protocol) for a shard file that is missing, though no other job replaces the checkpoint
template <class Load>
bool load_past_replacement(Load load) {
  constexpr int most_loads = 100;
  std::optional<Error> missing;
  std::int64_t former = 0;
  for (int loads = 0; loads < most_loads; ++loads) {
    ShardIndex index;
    try {
      const bool is_there = load(index);
      if (is_there || !missing) return is_there;
      break;  // values are of the former checkpoint, and the one that replaced it has gone
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != std::make_error_code(std::errc::no_such_file_or_directory)) throw;
      if (missing && index.id == former) break;
      missing = Error(make_error_code(Errc::protocol), error.what(), error.where());
      if (error.rank()) missing->with_rank(*error.rank());
      former = index.id;
    }
  }
  throw Error(*missing);
}

/// A tensor of a shard file: elements [offset, offset + count) of a parameter's state array.
struct ShardEntry {
  std::uint64_t array = 0;
  std::uint64_t parameter = 0;
  std::uint64_t offset = 0;
};

/// @returns nullopt for a name that no entry of a shard file has
std::optional<ShardEntry> parse_entry_name(std::string_view name);

/// The names of shard files next to `path` that begin with "PATH.shard-" followed by `with`.
std::vector<std::string> shard_file_names(const std::string& path, const std::string& with);

}  // namespace detail

/// Content of this rank's file: the state of its blocks. Rank 0's file also has the state that all ranks hold.
std::vector<NamedTensor> shard_entries(Shards& shares, int rank);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>
#include <utility>

#include "dtrain/core/log.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// "state 0 of parameter 3 from 4096".
inline std::string entry_name(const ShardEntry& entry) {
  return format_text("state {} of parameter {} from {}", {entry.array, entry.parameter, entry.offset});
}

DTRAIN_DEFINED std::optional<ShardEntry> parse_entry_name(std::string_view name) {
  ShardEntry entry;
  std::string_view rest = name;
  const auto number = [&rest](std::string_view before, std::uint64_t& value) {
    const bool has_word = rest.starts_with(before);
    rest.remove_prefix(has_word ? before.size() : 0);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return has_word && error == std::errc();
  };
  const bool is_whole = number("state ", entry.array) && number(" of parameter ", entry.parameter) &&
                        number(" from ", entry.offset) && rest.empty();
  return is_whole && entry_name(entry) == name ? std::optional(entry) : std::nullopt;
}

/// Elements [entry.offset, entry.offset + count) of a parameter's state array.
struct ShardInterval {
  ShardEntry entry;
  std::uint64_t count = 0;
};

/// Whether no element is in two of the intervals.
inline bool are_disjoint(std::vector<ShardInterval> intervals) {
  std::erase_if(intervals, [](const ShardInterval& each) { return each.count == 0; });
  const auto place = [](const ShardInterval& each) {
    return std::tuple(each.entry.array, each.entry.parameter, each.entry.offset);
  };
  std::sort(intervals.begin(), intervals.end(),
            [&](const ShardInterval& a, const ShardInterval& b) { return place(a) < place(b); });
  const auto overlap = [](const ShardInterval& a, const ShardInterval& b) {
    return a.entry.array == b.entry.array && a.entry.parameter == b.entry.parameter &&
           b.entry.offset - a.entry.offset < a.count;
  };
  return std::adjacent_find(intervals.begin(), intervals.end(), overlap) == intervals.end();
}

[[noreturn]] inline void refuse_incomplete(const std::string& path, const ShardIndex& index) {
  throw_error(Errc::protocol,
              "the {} shard files of the checkpoint {} do not have all of the optimizer's state once; load another "
              "checkpoint",
              {index.files, sanitize(path)});
}

/// @throws Error (ENOENT), for load_past_replacement, whose sentence is right also where the checkpoint stays the same
[[noreturn]] inline void throw_missing_shard(const std::string& path, const ShardIndex& index, std::int64_t file) {
  const std::string name = index.file_name(path, file);
  const std::string_view end = std::string_view(name).substr(path.size());
  std::string remedy =
      "shard files lie beside their checkpoint, in a folder that every rank reads, and are copied and renamed with it; "
      "another job may have replaced the checkpoint meanwhile: load it again";
  for (const std::string& other : files_that_begin(path.substr(0, path.rfind('/') + 1))) {
    if (!other.ends_with(end)) continue;
    // It may also be in use under that name: the checkpoint may have been copied.
    remedy = format_text(
        "the checkpoint was renamed or copied from one whose shard file {} is still there; give each shard file its "
        "new name, too, as by ln '{}' '{}'",
        {sanitize(other), sanitize(other), sanitize(name)});
  }
  throw Error(std::make_error_code(std::errc::no_such_file_or_directory),
              format_text("the checkpoint {} cannot be loaded: its shard file {} is missing; {}",
                          {sanitize(path), sanitize(name), remedy}));
}

/// Whether `name` is the end of a file_name(), after "PATH.shard-", with or without the end that an AtomicFile adds.
inline bool is_end_of_shard_name(std::string_view name) {
  constexpr std::size_t id_digits = 2 * sizeof(ShardIndex::id);
  const std::size_t part = std::min(name.find(".part"), name.size());
  const std::string_view added = name.substr(part);
  if (added == ".part" || added.starts_with(".part.attempt-")) name = name.substr(0, part);
  return name.size() > id_digits + 1 && name.find_first_not_of("0123456789abcdef") == id_digits &&
         name[id_digits] == '-' && name.find_first_not_of("0123456789", id_digits + 1) == std::string_view::npos;
}

DTRAIN_DEFINED std::vector<std::string> shard_file_names(const std::string& path, const std::string& with) {
  const std::string begin = path + ".shard-";
  std::vector<std::string> names = files_that_begin(begin + with);
  std::erase_if(names, [&begin](const std::string& name) {
    return !is_end_of_shard_name(std::string_view(name).substr(begin.size()));
  });
  return names;
}

inline void remove_files(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) {
      log(LogLevel::warning,
          format_text("removing the shard file {} failed: {}; the checkpoint of that name does not need it",
                      {sanitize(name), std::strerror(errno)}));
    }
  }
}

/// Reads the state of this rank's elements from one file, and then adds the file's intervals to `intervals`.
/// @returns the number of elements
inline std::size_t read_shard_file(CheckpointReader& reader, std::span<const ParameterSignature> entries,
                                   Shards& shares, std::span<const std::vector<ShardPiece>> own,
                                   std::vector<ShardInterval>& intervals, TensorAccess& access) {
  const std::size_t element = size_bytes(shares.element());
  std::size_t elements = 0;
  std::uint64_t first = 0;
  std::vector<ShardInterval> found;
  for (const ParameterSignature& tensor : entries) {
    const std::optional<ShardEntry> entry = parse_entry_name(tensor.name);
    const std::uint64_t count = tensor.shape.element_count();
    if (!entry || tensor.dtype != shares.element() || entry->array >= shares.arrays() ||
        entry->parameter >= own.size()) {
      reader.refuse(format_text("its tensor {} is no state of this optimizer; load another checkpoint",
                                {in_quotes(tensor.name)}));
    }
    found.push_back({*entry, count});
    for (const ShardPiece& piece : own[entry->parameter]) {
      const std::uint64_t begin = std::max<std::uint64_t>(entry->offset, piece.offset);
      const std::uint64_t end = std::min<std::uint64_t>(entry->offset + count, piece.offset + piece.count);
      if (begin < end) {
        const ShardPiece part{piece.parameter, begin, 0, piece.in_state + (begin - piece.offset), end - begin};
        const TensorView state = shares.state(entry->array, part);
        reader.read_bytes(first + (begin - entry->offset) * element, access.place(state));
        access.put(state);
        elements += part.count;
      }
    }
    first += count * element;
  }
  intervals.insert(intervals.end(), found.begin(), found.end());
  return elements;
}

}  // namespace detail

DTRAIN_DEFINED ShardIndex ShardIndex::of(const Shards& shares) {
  std::string text = std::to_string(shares.arrays());
  for (const Parameter& parameter : shares.parameters()) {
    text += format_text("\n{} {} {}", {parameter.name, to_string(parameter.value.shape), name(parameter.value.dtype)});
  }
  Sha256 digest;
  digest.update(std::as_bytes(std::span(text)));
  ShardIndex index;
  index.steps = static_cast<std::int64_t>(shares.steps());
  const Sha256Digest sum = digest.digest();
  std::copy(sum.begin(), sum.end(), index.model.begin());
  return index;
}

DTRAIN_DEFINED std::vector<NamedTensor> ShardIndex::tensors() {
  return {{std::string(shard_id_tensor), tensor_view(&id, {})},
          {"optimizer.shards.files", tensor_view(&files, {})},
          {"optimizer.steps", tensor_view(&steps, {})},
          {"optimizer.model",
           tensor_view(reinterpret_cast<std::uint8_t*>(model.data()), {static_cast<std::int64_t>(model.size())})}};
}

DTRAIN_DEFINED std::string ShardIndex::file_name(const std::string& path, std::int64_t rank) const {
  std::array<std::byte, sizeof(id)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[bytes.size() - 1 - i] = static_cast<std::byte>(static_cast<std::uint64_t>(id) >> (8 * i));
  }
  return format_text("{}.shard-{}-{}", {path, hex(bytes), rank});
}

DTRAIN_DEFINED std::vector<NamedTensor> shard_entries(Shards& shares, int rank) {
  std::vector<NamedTensor> entries;
  const auto add = [&](const std::vector<ShardPiece>& pieces) {
    for (const ShardPiece& piece : pieces) {
      for (std::size_t array = 0; array < shares.arrays(); ++array) {
        entries.push_back({detail::entry_name({array, piece.parameter, piece.offset}), shares.state(array, piece)});
      }
    }
  };
  for (const BucketShard& shard : shares.layout().buckets) {
    add(shard.own);
    if (rank == 0) add(shard.rest);
  }
  return entries;
}

DTRAIN_DEFINED void read_shard_files(const std::string& path, const ShardIndex& index, Shards& shares, int rank,
                                     int ranks, TensorAccess&& access) {
  std::vector<std::vector<ShardPiece>> own(shares.parameters().size());
  for (const BucketShard& shard : shares.layout().buckets) {
    for (const std::vector<ShardPiece>* pieces : {&shard.own, &shard.rest}) {
      for (const ShardPiece& piece : *pieces) {
        own[piece.parameter].push_back(piece);
      }
    }
  }
  std::size_t elements = 0;
  std::vector<detail::ShardInterval> intervals;
  for (std::int64_t file = 0; file < index.files; ++file) {
    elements += detail::read_past_stale([&] {
      detail::CheckpointReader reader(index.file_name(path, file));
      if (!reader) detail::throw_missing_shard(path, index, file);
      const std::vector<ParameterSignature> entries = reader.read_list();
      if (file % ranks == rank) reader.check_digest();
      return detail::read_shard_file(reader, entries, shares, own, intervals, access);
    });
  }
  if (elements != shares.arrays() * shares.layout().state_elements || !detail::are_disjoint(std::move(intervals))) {
    detail::refuse_incomplete(path, index);
  }
}

DTRAIN_DEFINED void read_whole_state(const std::string& path, const ShardIndex& index, const WholeState& state) {
  const std::vector<BufferView>& parameters = state.front();
  std::vector<std::size_t> found(state.size());
  std::vector<detail::ShardInterval> intervals;
  const auto read_file = [&](std::int64_t file) {
    detail::CheckpointReader reader(index.file_name(path, file));
    if (!reader) detail::throw_missing_shard(path, index, file);
    const std::vector<ParameterSignature> entries = reader.read_list();
    reader.check_digest();
    std::vector<detail::ShardInterval> of_file;
    std::uint64_t first = 0;
    for (const ParameterSignature& tensor : entries) {
      const std::optional<detail::ShardEntry> entry = detail::parse_entry_name(tensor.name);
      const std::size_t count = tensor.shape.element_count();
      const bool is_known = entry && entry->array <= state.size() && entry->parameter < parameters.size() &&
                            tensor.dtype == parameters[entry->parameter].dtype;
      const std::size_t size = is_known ? parameters[entry->parameter].count : 0;
      if (!is_known || entry->offset > size || count > size - entry->offset) {
        reader.refuse(format_text("its tensor {} is no state of this optimizer; load another checkpoint",
                                  {in_quotes(tensor.name)}));
      }
      const std::size_t element = size_bytes(tensor.dtype);
      if (entry->array < state.size()) {
        std::byte* const place = state[entry->array][entry->parameter].data + entry->offset * element;
        reader.read_bytes(first, {place, count * element});
        of_file.push_back({*entry, count});
      }
      first += count * element;
    }
    return of_file;
  };
  for (std::int64_t file = 0; file < index.files; ++file) {
    for (const detail::ShardInterval& interval : detail::read_past_stale([&] { return read_file(file); })) {
      intervals.push_back(interval);
      found[interval.entry.array] += interval.count;
    }
  }
  std::size_t wanted = 0;
  for (const BufferView& parameter : parameters) {
    wanted += parameter.count;
  }
  if (std::any_of(found.begin(), found.end(), [wanted](std::size_t elements) { return elements != wanted; }) ||
      !detail::are_disjoint(std::move(intervals))) {
    detail::refuse_incomplete(path, index);
  }
}

/// The shard files next to `path` except those of index `own`, and the partial files of killed writers. Blocking: the
/// file system.
inline std::vector<std::string> other_shard_files(const std::string& path, const ShardIndex& own) {
  const std::string first = own.file_name(path, 0);
  const std::string_view begin = std::string_view(first).substr(0, first.rfind('-') + 1);
  std::vector<std::string> names = detail::shard_file_names(path, "");
  std::erase_if(names, [begin](const std::string& name) { return name.starts_with(begin); });
  return names;
}

/// Removes the shard files of one index, or only the file of `rank`.
inline void remove_shard_files(const std::string& path, const ShardIndex& index,
                               std::optional<int> rank = {}) noexcept {
  try {
    const std::string own = index.file_name(path, rank.value_or(0));
    const std::size_t begin = path.size() + std::string_view(".shard-").size();
    detail::remove_files(rank ? std::vector<std::string>{own}
                              : detail::shard_file_names(path, own.substr(begin, own.rfind('-') + 1 - begin)));
  } catch (const std::exception&) {  // no memory for the names: the next save removes the files
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
