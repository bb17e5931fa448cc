#pragma once
/// @file
/// The order of the sources, and the pure function that turns an environment into a ProcessIdentity.

#include <array>
#include <string>
#include <string_view>

#include "dtrain/identity/incomplete.hpp"
#include "dtrain/identity/sources/dtrain.hpp"
#include "dtrain/identity/sources/kubernetes.hpp"
#include "dtrain/identity/sources/single.hpp"
#include "dtrain/identity/sources/torch.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A launcher's traces: its name, whether they give both rank and world size, and what they say.
struct Source {
  std::string_view name;
  bool (*present)(const Variables&);
  ProcessIdentity (*read)(const Variables&, Arguments);
};

template <class S>
constexpr Source source_of() noexcept {
  return {S::name, &S::present, &S::read};
}

/// The first that is present wins. The last always is.
inline constexpr std::array<Source, 4> sources{
    source_of<DtrainSource>(),
    source_of<TorchSource>(),
    source_of<KubernetesSource>(),
    source_of<SingleSource>(),
};

namespace detail {

/// The source that DTRAIN_LAUNCHER names. @throws IdentityError (unknown-launcher), which lists what is there.
inline const Source& forced_source(const Variables& variables, const std::string& wanted) {
  if (wanted == "none") {
    return sources.back();
  }
  std::string there;
  for (const Source& source : sources) {
    if (!source.present(variables)) {
      continue;
    }
    if (source.name == wanted) {
      return source;
    }
    there += std::string(source.name) + ", ";
  }
  throw IdentityError(IdentityErrc::unknown_launcher, quoted("DTRAIN_LAUNCHER", wanted) +
                                                          " names no launcher whose variables are set; there are: " +
                                                          there + "none; set one of them, or unset it");
}

inline const Source& first_source(const Variables& variables) {
  for (const Source& source : sources) {
    if (source.name != SingleSource::name && source.present(variables)) {
      return source;
    }
  }
  check_incomplete(variables);
  return sources.back();
}

}  // namespace detail

/// Who the process with this environment and these arguments is. Pure: the same values give the same answer, whatever
/// the real environment.
/// @throws IdentityError where the environment contradicts itself or says only half.
inline ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {}) {
  const Variables variables(environment);
  const std::optional<std::string> wanted = variables.text("DTRAIN_LAUNCHER");
  const Source& source = wanted ? detail::forced_source(variables, *wanted) : detail::first_source(variables);
  ProcessIdentity who = source.read(variables, arguments);
  if (!DtrainSource::present(variables) && (variables.has("DTRAIN_RANK") || variables.has("DTRAIN_WORLD_SIZE"))) {
    who.warnings.emplace_back("only one of DTRAIN_RANK and DTRAIN_WORLD_SIZE is set: ignored");
  }
  return who;
}

}  // namespace DTRAIN_NAMESPACE::identity
