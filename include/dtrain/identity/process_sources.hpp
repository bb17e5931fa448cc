#pragma once
/// @file
/// Process-identity sources, in order of precedence.

#include <array>
#include <string>
#include <string_view>

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

/// @param there the names of launchers that are present, each followed by ", "
[[noreturn]] inline void refuse_launcher(const std::string& wanted, const std::string& there) {
  throw IdentityError(IdentityErrc::unknown_launcher, quoted("DTRAIN_LAUNCHER", wanted) +
                                                          " names no launcher whose variables are set; there are: " +
                                                          there + "none; set one of them, or unset it");
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
  refuse_launcher(wanted, names_of_present(variables));
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
