#pragma once
// The part of LightGBM's C interface that trees_lightgbm.cpp calls: its package for Python has the library without
// headers.

#include <cstdint>

namespace lightgbm {

// LightGBM/meta.h: the types of its network's two functions, of which the first gets a reducer.
using Reducer = void (*)(const char* from, char* into, int element_bytes, std::int32_t bytes);
using ReduceScatter = void (*)(char* input, std::int32_t input_bytes, int element_bytes,
                               const std::int32_t* block_begins, const std::int32_t* block_bytes, int blocks,
                               char* output, std::int32_t output_bytes, const Reducer& reducer);
using AllGather = void (*)(char* input, std::int32_t input_bytes, const std::int32_t* block_begins,
                           const std::int32_t* block_bytes, int blocks, char* output, std::int32_t output_bytes);

// LightGBM/c_api.h: each returns 0, or -1 and LGBM_GetLastError() says why.
extern "C" {
const char* LGBM_GetLastError();
int LGBM_NetworkInit(const char* machines, int port, int timeout_minutes, int ranks);
int LGBM_NetworkInitWithFunctions(int ranks, int rank, void* reduce_scatter, void* all_gather);
int LGBM_NetworkFree();
int LGBM_DatasetCreateFromFile(const char* path, const char* parameters, void* reference, void** dataset);
int LGBM_DatasetGetNumData(void* dataset, std::int32_t* rows);
int LGBM_DatasetFree(void* dataset);
int LGBM_BoosterCreate(void* dataset, const char* parameters, void** booster);
int LGBM_BoosterUpdateOneIter(void* booster, int* is_finished);
int LGBM_BoosterGetEvalCounts(void* booster, int* metrics);
int LGBM_BoosterGetEval(void* booster, int data, int* metrics, double* values);
int LGBM_BoosterSaveModel(void* booster, int first, int iterations, int importance, const char* path);
int LGBM_BoosterFree(void* booster);
}

}  // namespace lightgbm
