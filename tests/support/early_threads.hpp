#pragma once
// The library early_threads, which starts a thread when it is loaded, as OpenBLAS does.

/// How many threads the library has started before main: 1 if PROBE_EARLY_THREAD is set, else 0; -1 if it failed.
extern "C" int early_threads();
