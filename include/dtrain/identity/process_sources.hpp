#pragma once
/// @file
/// Process-identity sources, in order of precedence.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/check_complete.hpp"
#include "dtrain/identity/launchers/clusters.hpp"
#include "dtrain/identity/launchers/launchers.hpp"
#include "dtrain/identity/launchers/openmpi.hpp"
#include "dtrain/identity/launchers/pmi.hpp"
#include "dtrain/identity/launchers/sagemaker.hpp"
#include "dtrain/identity/launchers/single.hpp"
#include "dtrain/identity/launchers/slurm.hpp"
#include "dtrain/identity/launchers/torch.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The variables that a source needs; an empty name is none.
using Needs = std::array<std::string_view, 3>;

/// A source: the launcher's name (a value of DTRAIN_LAUNCHER), whether its variables give both rank and world size, and
/// the identity that they give.
struct IdentitySource {
  std::string_view name;
  Needs needs;
  ProcessIdentity (*read)(const Variables&, Arguments);
  bool (*present_if)(const Variables&) = nullptr;  ///< null: if all that it needs is set

  bool present(const Variables& variables) const {
    return present_if != nullptr ? present_if(variables)
                                 : std::all_of(needs.begin(), needs.end(), [&](std::string_view variable) {
                                     return variable.empty() || variables.has(variable);
                                   });
  }
};

template <const LauncherVariables& names>
constexpr IdentitySource source_of(ProcessIdentity (*read)(const Variables&, Arguments) = read_launcher<names>) {
  return {names.launcher, {names.rank, names.world_size}, read};
}

template <class S>
constexpr IdentitySource cluster_source() {
  return {S::name, {S::roles.variable}, read_cluster_source<S>, cluster_is_present<S>};
}

/// The first source that is present counts. Sources of launchers come before sources that only describe a cluster,
/// because mpirun may run inside a cluster. The last source is always present.
inline constexpr std::array<IdentitySource, 14> sources{{
    source_of<dtrain_names>(read_dtrain),
    {TorchSource::name, {"RANK", "WORLD_SIZE"}, TorchSource::read},
    source_of<horovod_names>(),
    source_of<OpenMpiSource::names>(OpenMpiSource::read),
    source_of<jsrun_names>(),
    source_of<mvapich_names>(),
    source_of<flux_names>(),
    {PmiSource::name, {"PMI_RANK", "PMI_SIZE"}, PmiSource::read},
    {SlurmSource::name, {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}, SlurmSource::read, in_slurm_step},
    cluster_source<TfConfigSource>(),
    cluster_source<VertexSource>(),
    {SageMakerSource::name, {"SM_HOSTS", "SM_CURRENT_HOST"}, SageMakerSource::read},
    {kubernetes_names.launcher,
     {kubernetes_names.rank, kubernetes_names.world_size},
     read_kubernetes,
     kubernetes_is_present},
    {SingleSource::name, {}, SingleSource::read},
}};

namespace detail {

/// The source that is always present, as refuse_launcher() lists it.
inline constexpr std::string_view no_launcher = "single, ";
static_assert(no_launcher.starts_with(SingleSource::name));

/// Names what a known launcher lacks, or all known launchers.
/// @param there the names of launchers that are present, each followed by ", "
[[noreturn]] inline void refuse_launcher(const Variables& variables, std::string_view wanted,
                                         const std::string& there) {
  std::string missing;
  std::string known;
  bool is_known = false;
  const auto add = [&](std::string_view launcher, const Needs& needs) {
    append_text(known, "{}, ", {launcher});
    is_known = is_known || launcher == wanted;
    for (const std::string_view variable : needs) {
      if (launcher == wanted && !variable.empty() && !variables.has(variable)) {
        append_text(missing, "{}{}", {missing.empty() ? "" : ", ", variable});
      }
    }
  };
  for (const IdentitySource& source : sources) {
    if (source.name != SingleSource::name) {
      add(source.name, source.needs);
    }
  }
  add("node", {"NODE_RANK", "NNODES"});  // the pairs of node_sources.hpp
  add("pet", {"PET_NODE_RANK", "PET_NNODES"});
  const std::string own = quoted("DTRAIN_LAUNCHER", wanted);
  if (is_known && there == no_launcher) {
    throw_identity_error(
        IdentityErrc::unknown_launcher,
        "{} names a launcher, but its variables are not set, and no other launcher's are; set {}, or unset "
        "DTRAIN_LAUNCHER",
        {own, missing.empty() ? "them for every process" : missing});
  }
  if (there == no_launcher) {
    throw_identity_error(
        IdentityErrc::unknown_launcher,
        "{} names no launcher that dtrain knows ({}single, none), and no launcher's variables are set; "
        "unset DTRAIN_LAUNCHER",
        {own, known});
  }
  const std::string why = is_known ? "" : format_text(", nor one that dtrain knows ({}single, none)", {known});
  throw_identity_error(
      IdentityErrc::unknown_launcher,
      "{} names no launcher whose variables are set{}{}{}; there are: {}none; set one of them, or unset it",
      {own, why, missing.empty() ? "" : ": not set for it: ", missing, there});
}

inline std::string names_of_present(const Variables& variables) {
  std::string names;
  for (const IdentitySource& source : sources) {
    if (source.present(variables)) {
      append_text(names, "{}, ", {source.name});
    }
  }
  return names;
}

/// The source that DTRAIN_LAUNCHER names. @throws IdentityError (unknown-launcher), which lists the present sources
inline const IdentitySource& forced_source(const Variables& variables, std::string_view wanted) {
  if (wanted == "none") {
    return sources.back();
  }
  for (const IdentitySource& source : sources) {
    if (source.name == wanted && source.present(variables)) {
      return source;
    }
  }
  refuse_launcher(variables, wanted, names_of_present(variables));
}

inline const IdentitySource& first_source(const Variables& variables) {
  for (const IdentitySource& source : sources) {
    const bool yields = source.name == PmiSource::name && PmiSource::yields_to_slurm(variables);
    if (source.name != SingleSource::name && !yields && source.present(variables)) {
      return source;
    }
  }
  check_complete(variables);
  return sources.back();
}

/// Whether a source gives the same rank and world size as `identity`; false if the source throws.
inline bool agrees(const IdentitySource& source, const Variables& variables, Arguments arguments,
                   const ProcessIdentity& identity) {
  try {
    const ProcessIdentity other = source.read(variables, arguments);
    return other.rank == identity.rank && other.world_size == identity.world_size;
  } catch (const IdentityError&) {
    return false;
  }
}

/// Adds present sources that disagree with the chosen one to `ignored`, for the printed line. If [dtrain] was chosen,
/// other sources are not compared.
inline void note_ignored(const IdentitySource& chosen, const Variables& variables, Arguments arguments,
                         ProcessIdentity& identity) {
  for (const IdentitySource& source : sources) {
    if (chosen.name != dtrain_names.launcher && source.name != chosen.name && source.name != SingleSource::name &&
        source.present(variables) && !agrees(source, variables, arguments, identity)) {
      const bool by_hand = source.name == TorchSource::name && !variables.has("TORCHELASTIC_RUN_ID");
      identity.ignored.push_back(std::string(by_hand ? "RANK and WORLD_SIZE" : source.name));
    }
  }
  const bool half = variables.has("DTRAIN_RANK") != variables.has("DTRAIN_WORLD_SIZE");
  if (half) {
    identity.warnings.push_back("only one of DTRAIN_RANK and DTRAIN_WORLD_SIZE is set: ignored");
  }
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::identity
