#include "support/backend_archetypes.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using archetype::BackendLacks;

template <BackendLacks Lack>
using Lacking = archetype::Backend<Lack>;

/// How many of the concept's abilities B has.
template <class B>
constexpr int abilities = backend::HasBackendName<B> + backend::HasDeviceSupport<B> + backend::HasDTypeSupport<B> +
                          backend::CanOpen<B> + backend::HasCommunicationStream<B>;

TEST_CASE("a backend has all abilities of the concept, and a type that lacks one is none") {
  CHECK(backend::Backend<archetype::Backend<>>);
  CHECK_FALSE(backend::HasBackendName<Lacking<BackendLacks::name>>);
  CHECK_FALSE(backend::HasDeviceSupport<Lacking<BackendLacks::devices>>);
  CHECK_FALSE(backend::HasDTypeSupport<Lacking<BackendLacks::dtypes>>);
  CHECK_FALSE(backend::CanOpen<Lacking<BackendLacks::opening>>);
  CHECK_FALSE(backend::HasCommunicationStream<Lacking<BackendLacks::stream>>);

  CHECK_FALSE(backend::Backend<Lacking<BackendLacks::name>>);
  CHECK_FALSE(backend::Backend<Lacking<BackendLacks::devices>>);
  CHECK_FALSE(backend::Backend<Lacking<BackendLacks::dtypes>>);
  CHECK_FALSE(backend::Backend<Lacking<BackendLacks::opening>>);
  CHECK_FALSE(backend::Backend<Lacking<BackendLacks::stream>>);
}

TEST_CASE("each lack takes away exactly one ability of a backend") {
  CHECK(abilities<Lacking<BackendLacks::name>> == 4);
  CHECK(abilities<Lacking<BackendLacks::devices>> == 4);
  CHECK(abilities<Lacking<BackendLacks::dtypes>> == 4);
  CHECK(abilities<Lacking<BackendLacks::opening>> == 4);
  CHECK(abilities<Lacking<BackendLacks::stream>> == 4);
}

}  // namespace
