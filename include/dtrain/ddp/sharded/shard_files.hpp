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

/// Memory of the whole state, not shared out, and its names in the files.
struct WholeState {
  std::vector<std::string> parameters;
  std::vector<std::string> arrays;              ///< Shards::array_name(), at least one
  std::vector<std::vector<BufferView>> memory;  ///< [arrays][parameters], of all elements of each parameter, f32 or f64
};

/// Reads the whole state of an optimizer from its shard files. The f32 weights of a 16-bit model, which are one more
/// array, are left out. Blocking: the file system.
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

/// The names of shard files next to `path` that begin with "PATH.shard-" followed by `with`.
std::vector<std::string> shard_file_names(const std::string& path, const std::string& with);

}  // namespace detail

/// Tensors of a shard file, and its value of sharding_key.
struct ShardContent {
  std::vector<NamedTensor> tensors;
  std::string sharding;
};

/// Content of this rank's file: the state of its blocks, at most one part of a parameter's state array. The last rank's
/// file also has the state that all ranks hold, which begins where its own blocks end.
ShardContent shard_content(Shards& shares, int rank, int ranks);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_file.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Elements [offset, offset + count) of a parameter's state array, at byte `begin` of a file's elements.
struct ShardInterval {
  std::size_t array = 0;
  std::size_t parameter = 0;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::uint64_t begin = 0;
};

inline std::string state_name(const std::string& parameter, const std::string& array) {
  return format_text("dtrain.optimizer.state.{}.{}", {parameter, array});
}

/// The parameters' names in shard files: `names`, those of the model; if two are equal, each with "#" and its position.
inline std::vector<std::string> names_in_files(std::vector<std::string> names) {
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const bool are_unique = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  for (std::size_t i = 0; !are_unique && i < names.size(); ++i) {
    append_text(names[i], "#{}", {i});
  }
  return names;
}

inline std::vector<std::string> names_in_files(std::span<const Parameter> parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters)
    names.push_back(parameter.name);
  return names_in_files(std::move(names));
}

/// The tensors that shard files may have.
class StateNames {
 public:
  /// @param names of names_in_files @param parameters the whole state of each: type and number of elements
  StateNames(std::span<const std::string> arrays, std::span<const std::string> names,
             std::vector<BufferView> parameters)
      : parameters_(std::move(parameters)) {
    for (std::size_t array = 0; array < arrays.size(); ++array) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        sorted_.push_back({state_name(names[i], arrays[array]), {array, i, 0, 0, 0}});
      }
    }
    std::sort(sorted_.begin(), sorted_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  /// The parts of the state in a file. @throws Error (protocol) if it has anything else
  std::vector<ShardInterval> intervals_of(const SafetensorsFile& file) const {
    const auto first = parse_sharding(file.header().sharding);
    std::vector<ShardInterval> found;
    std::size_t i = 0;
    for (const FileTensor& tensor : file.header().tensors) {  // both lists are sorted
      const auto named = std::lower_bound(sorted_.begin(), sorted_.end(), tensor.name,
                                          [](const auto& each, const std::string& name) { return each.first < name; });
      const bool is_named = named != sorted_.end() && named->first == tensor.name;
      const BufferView parameter = is_named ? parameters_[named->second.parameter] : BufferView{};
      const bool has_offset = first && i < first->size() && (*first)[i].first == tensor.name;
      const std::uint64_t offset = has_offset ? (*first)[i++].second : 0;
      const std::uint64_t count = tensor.shape ? tensor.shape->element_count() : 0;
      if (!is_named || !has_offset || tensor.dtype != parameter.dtype || !tensor.shape || offset > parameter.count ||
          count > parameter.count - offset) {
        file.refuse(format_text("its tensor {} is no state of this optimizer; load another checkpoint",
                                {in_quotes(tensor.name)}));
      }
      found.push_back({named->second.array, named->second.parameter, offset, count, tensor.begin});
    }
    return found;
  }

 private:
  std::vector<BufferView> parameters_;
  std::vector<std::pair<std::string, ShardInterval>> sorted_;
};

/// Whether no element is in two of the intervals.
inline bool are_disjoint(std::vector<ShardInterval> intervals) {
  std::erase_if(intervals, [](const ShardInterval& each) { return each.count == 0; });
  const auto place = [](const ShardInterval& each) { return std::tuple(each.array, each.parameter, each.offset); };
  std::sort(intervals.begin(), intervals.end(),
            [&](const ShardInterval& a, const ShardInterval& b) { return place(a) < place(b); });
  const auto overlap = [](const ShardInterval& a, const ShardInterval& b) {
    return a.array == b.array && a.parameter == b.parameter && b.offset - a.offset < a.count;
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

/// Opens shard file `file`, and reads its header. @throws as read_shard_files
inline SafetensorsFile open_shard(const std::string& path, const ShardIndex& index, std::int64_t file) {
  SafetensorsFile opened(index.file_name(path, file));
  if (!opened) throw_missing_shard(path, index, file);
  opened.read_header();
  if (!opened.header().digest)
    opened.refuse("its metadata has no dtrain.sha256: it is damaged; load another checkpoint");
  return opened;
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
          {"dtrain.optimizer.shards.files", tensor_view(&files, {})},
          {"dtrain.optimizer.steps", tensor_view(&steps, {})},
          {"dtrain.optimizer.model",
           tensor_view(reinterpret_cast<std::uint8_t*>(model.data()), {static_cast<std::int64_t>(model.size())})}};
}

DTRAIN_DEFINED std::string ShardIndex::file_name(const std::string& path, std::int64_t rank) const {
  std::array<std::byte, sizeof(id)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[bytes.size() - 1 - i] = static_cast<std::byte>(static_cast<std::uint64_t>(id) >> (8 * i));
  }
  return format_text("{}.shard-{}-{}", {path, hex(bytes), rank});
}

DTRAIN_DEFINED ShardContent shard_content(Shards& shares, int rank, int ranks) {
  ShardContent content{{}, "{"};
  const std::vector<std::string> names = detail::names_in_files(shares.parameters());
  for (const BucketShard& shard : shares.layout().buckets) {
    std::vector<ShardPiece> pieces = shard.own;
    for (const ShardPiece& piece : rank == ranks - 1 ? shard.rest : std::vector<ShardPiece>()) {
      if (!pieces.empty() && pieces.back().parameter == piece.parameter) {
        pieces.back().count += piece.count;  // the rest begins where this rank's block ends, also in the state
      } else {
        pieces.push_back(piece);
      }
    }
    for (const ShardPiece& piece : pieces) {
      for (std::size_t array = 0; array < shares.arrays(); ++array) {
        std::string name = detail::state_name(names[piece.parameter], shares.array_name(array));
        if (content.sharding.size() > 1) content.sharding += ',';
        append_text(content.sharding, R"({}:{"saved_offsets":[{}]})", {identity::json_string(name), piece.offset});
        content.tensors.push_back({std::move(name), shares.state(array, piece)});
      }
    }
  }
  content.sharding += '}';
  return content;
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
  std::vector<std::string> arrays;
  std::vector<BufferView> sizes;
  for (std::size_t array = 0; array < shares.arrays(); ++array) {
    arrays.push_back(shares.array_name(array));
  }
  for (const Parameter& parameter : shares.parameters()) {
    sizes.push_back({nullptr, parameter.value.shape.element_count(), shares.element(), {}});
  }
  const detail::StateNames names(arrays, detail::names_in_files(shares.parameters()), std::move(sizes));
  const std::size_t element = size_bytes(shares.element());
  std::size_t elements = 0;
  std::vector<detail::ShardInterval> intervals;
  const auto read_file = [&](std::int64_t number) {
    const SafetensorsFile file = detail::open_shard(path, index, number);
    std::vector<detail::ShardInterval> found = names.intervals_of(file);
    if (number % ranks == rank) file.check_digest();
    std::size_t of_file = 0;
    for (const detail::ShardInterval& each : found) {
      for (const ShardPiece& piece : own[each.parameter]) {
        const std::uint64_t begin = std::max<std::uint64_t>(each.offset, piece.offset);
        const std::uint64_t end = std::min<std::uint64_t>(each.offset + each.count, piece.offset + piece.count);
        if (begin >= end) continue;
        const TensorView state =
            shares.state(each.array, {piece.parameter, begin, 0, piece.in_state + (begin - piece.offset), end - begin});
        file.read_bytes(each.begin + (begin - each.offset) * element, access.place(state));
        access.put(state);
        of_file += end - begin;
      }
    }
    elements += of_file;  // not before: a file that is stale is read once more
    return found;
  };
  for (std::int64_t file = 0; file < index.files; ++file) {
    const auto found = detail::read_past_stale([&] { return read_file(file); });
    intervals.insert(intervals.end(), found.begin(), found.end());
  }
  if (elements != shares.arrays() * shares.layout().state_elements || !detail::are_disjoint(std::move(intervals))) {
    detail::refuse_incomplete(path, index);
  }
}

DTRAIN_DEFINED void read_whole_state(const std::string& path, const ShardIndex& index, const WholeState& state) {
  std::vector<std::string> arrays = state.arrays;
  arrays.push_back("master");
  const detail::StateNames names(arrays, detail::names_in_files(state.parameters), state.memory.front());
  std::vector<std::size_t> elements(arrays.size());
  std::vector<detail::ShardInterval> intervals;
  const auto read_file = [&](std::int64_t number) {
    const SafetensorsFile file = detail::open_shard(path, index, number);
    std::vector<detail::ShardInterval> found = names.intervals_of(file);
    file.check_digest();
    for (const detail::ShardInterval& each : found) {
      if (each.array == state.arrays.size()) continue;
      const BufferView& to = state.memory[each.array][each.parameter];
      const std::size_t element = size_bytes(to.dtype);
      file.read_bytes(each.begin, {to.data + each.offset * element, each.count * element});
    }
    return found;
  };
  for (std::int64_t file = 0; file < index.files; ++file) {
    for (const detail::ShardInterval& interval : detail::read_past_stale([&] { return read_file(file); })) {
      intervals.push_back(interval);
      elements[interval.array] += interval.count;
    }
  }
  std::size_t wanted = 0;
  for (const BufferView& parameter : state.memory.front()) {
    wanted += parameter.count;
  }
  elements.pop_back();
  if (std::any_of(elements.begin(), elements.end(), [wanted](std::size_t count) { return count != wanted; }) ||
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
