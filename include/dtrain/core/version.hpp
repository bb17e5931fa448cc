#pragma once
/// @file
/// Version of dtrain and its namespace; a job's ranks and its store compare version_text.

#define DTRAIN_VERSION_MAJOR 0
#define DTRAIN_VERSION_MINOR 1
#define DTRAIN_VERSION_PATCH 0

#define DTRAIN_DETAIL_JOIN_EXPANDED(a, b, c, d) a##b##c##d
#define DTRAIN_DETAIL_JOIN(a, b, c, d) DTRAIN_DETAIL_JOIN_EXPANDED(a, b, c, d)
#define DTRAIN_DETAIL_DOTTED_EXPANDED(a, b, c) #a "." #b "." #c
#define DTRAIN_DETAIL_DOTTED(a, b, c) DTRAIN_DETAIL_DOTTED_EXPANDED(a, b, c)

/// Every file opens `namespace DTRAIN_NAMESPACE::async {`. The inline namespace contains the version and nothing else.
/// Therefore objects compiled with different options link, and objects of different versions do not mix silently.
#define DTRAIN_NAMESPACE dtrain::inline DTRAIN_DETAIL_JOIN(v, DTRAIN_VERSION_MAJOR, _, DTRAIN_VERSION_MINOR)

namespace DTRAIN_NAMESPACE {

/// The three numbers of a version.
/// @ingroup jobs
struct Version {
  int major;
  int minor;
  int patch;

  friend constexpr bool operator==(const Version&, const Version&) = default;
};

/// The version of these headers.
/// @ingroup jobs
inline constexpr Version version{DTRAIN_VERSION_MAJOR, DTRAIN_VERSION_MINOR, DTRAIN_VERSION_PATCH};

/// "0.1.0"; the ranks of a job and its store compare it.
/// @ingroup jobs
inline constexpr const char* version_text =
    DTRAIN_DETAIL_DOTTED(DTRAIN_VERSION_MAJOR, DTRAIN_VERSION_MINOR, DTRAIN_VERSION_PATCH);

}  // namespace DTRAIN_NAMESPACE
