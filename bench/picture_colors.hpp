#pragma once
/// @file
/// Colors of the benchmarks' pictures, which have no background: middle tones that are read on white and on dark pages.

namespace bench::picture_color {

inline constexpr const char* text = "#767b82";
inline constexpr const char* grid = "#878d9555";
inline constexpr const char* blue = "#3f83c9";
inline constexpr const char* light_blue = "#7fb0e0";
inline constexpr const char* green = "#2f9465";
inline constexpr const char* red = "#d64f4a";
inline constexpr const char* amber = "#b57d1c";
inline constexpr const char* violet = "#8f7ad6";
inline constexpr const char* grey = "#878d95";

}  // namespace bench::picture_color
