#pragma once
/// @file
/// Process-identity sources, in order of precedence.

#include <array>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/check_complete.hpp"
#include "dtrain/identity/sources/dtrain.hpp"
#include "dtrain/identity/sources/flux.hpp"
#include "dtrain/identity/sources/horovod.hpp"
#include "dtrain/identity/sources/jsrun.hpp"
#include "dtrain/identity/sources/kubernetes.hpp"
#include "dtrain/identity/sources/mvapich.hpp"
#include "dtrain/identity/sources/openmpi.hpp"
#include "dtrain/identity/sources/pmi.hpp"
#include "dtrain/identity/sources/sagemaker.hpp"
#include "dtrain/identity/sources/single.hpp"
#include "dtrain/identity/sources/slurm.hpp"
#include "dtrain/identity/sources/tf_config.hpp"
#include "dtrain/identity/sources/torch.hpp"
#include "dtrain/identity/sources/vertex.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A source: the launcher's name, whether its variables give both rank and world size, and the identity that they give.
struct IdentitySource {
  std::string_view name;
  bool (*present)(const Variables&);
  ProcessIdentity (*read)(const Variables&, Arguments);
};

template <class S>
constexpr IdentitySource source_of() noexcept {
  return {S::name, &S::present, &S::read};
}

/// The first source that is present counts. Sources of launchers come before sources that only describe a cluster,
/// because mpirun may run inside a cluster. The last source is always present.
inline constexpr std::array<IdentitySource, 14> sources{
    source_of<DtrainSource>(),     source_of<TorchSource>(),  source_of<HorovodSource>(),
    source_of<OpenMpiSource>(),    source_of<JsrunSource>(),  source_of<MvapichSource>(),
    source_of<FluxSource>(),       source_of<PmiSource>(),    source_of<SlurmSource>(),
    source_of<TfConfigSource>(),   source_of<VertexSource>(), source_of<SageMakerSource>(),
    source_of<KubernetesSource>(), source_of<SingleSource>(),
};

namespace detail {

/// A value of DTRAIN_LAUNCHER, and the variables that it needs.
struct LauncherNeeds {
  std::string_view launcher;
  std::array<std::string_view, 3> variables;
};

/// The names of `sources`, in their order, and of the pairs of node_sources.hpp.
inline constexpr std::array<LauncherNeeds, 15> launcher_needs{{
    {DtrainSource::name, {"DTRAIN_RANK", "DTRAIN_WORLD_SIZE"}},
    {TorchSource::name, {"RANK", "WORLD_SIZE"}},
    {HorovodSource::name, {HorovodSource::names.rank, HorovodSource::names.world_size}},
    {OpenMpiSource::name, {OpenMpiSource::names.rank, OpenMpiSource::names.world_size}},
    {JsrunSource::name, {JsrunSource::names.rank, JsrunSource::names.world_size}},
    {MvapichSource::name, {MvapichSource::names.rank, MvapichSource::names.world_size}},
    {FluxSource::name, {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}},
    {PmiSource::name, {"PMI_RANK", "PMI_SIZE"}},
    {SlurmSource::name, {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}},
    {TfConfigSource::name, {TfConfigSource::roles.variable}},
    {VertexSource::name, {VertexSource::roles.variable}},
    {SageMakerSource::name, {"SM_HOSTS", "SM_CURRENT_HOST"}},
    {KubernetesSource::name, {"JOB_COMPLETION_INDEX", "WORLD_SIZE"}},
    {"node", {"NODE_RANK", "NNODES"}},
    {"pet", {"PET_NODE_RANK", "PET_NNODES"}},
}};

/// Names what a known launcher lacks, or all known launchers.
/// @param there the names of launchers that are present, each followed by ", "
[[noreturn]] inline void refuse_launcher(const Variables& variables, const std::string& wanted,
                                         const std::string& there) {
  std::string missing;
  std::string known;
  bool is_known = false;
  for (const LauncherNeeds& needs : launcher_needs) {
    known += std::string(needs.launcher) + ", ";
    is_known = is_known || needs.launcher == wanted;
    for (const std::string_view variable : needs.variables) {
      if (needs.launcher == wanted && !variable.empty() && !variables.has(variable)) {
        missing += (missing.empty() ? "" : ", ") + std::string(variable);
      }
    }
  }
  const std::string why = is_known ? "" : format_text(", nor one that dtrain knows ({}single, none)", {known});
  throw_identity_error(
      IdentityErrc::unknown_launcher,
      "{} names no launcher whose variables are set{}{}{}; there are: {}none; set one of them, or unset it",
      {quoted("DTRAIN_LAUNCHER", wanted), why, missing.empty() ? "" : ": not set for it: ", missing, there});
}

inline std::string names_of_present(const Variables& variables) {
  std::string names;
  for (const IdentitySource& source : sources) {
    names += source.present(variables) ? std::string(source.name) + ", " : "";
  }
  return names;
}

/// The source that DTRAIN_LAUNCHER names. @throws IdentityError (unknown-launcher), which lists the present sources
inline const IdentitySource& forced_source(const Variables& variables, const std::string& wanted) {
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
    if (chosen.name != DtrainSource::name && source.name != chosen.name && source.name != SingleSource::name &&
        source.present(variables) && !agrees(source, variables, arguments, identity)) {
      const bool by_hand = source.name == TorchSource::name && !variables.has("TORCHELASTIC_RUN_ID");
      identity.ignored.emplace_back(by_hand ? "RANK and WORLD_SIZE" : source.name);
    }
  }
  const bool half = variables.has("DTRAIN_RANK") != variables.has("DTRAIN_WORLD_SIZE");
  if (half) {
    identity.warnings.emplace_back("only one of DTRAIN_RANK and DTRAIN_WORLD_SIZE is set: ignored");
  }
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::identity
