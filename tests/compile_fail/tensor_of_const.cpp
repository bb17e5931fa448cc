// A parameters() that is const sees const vectors, whose memory training could not write.
// expect: dtrain: tensor_view needs memory that may be written, and these elements are const
// expect: declare parameters() without const
// one error
#include <vector>

#include "dtrain/ddp/parameter.hpp"

struct Model {
#ifdef DTRAIN_COMPILE_FAIL
  std::vector<dtrain::Parameter> parameters() const {
#else
  std::vector<dtrain::Parameter> parameters() {
#endif
    return {{"weight", dtrain::tensor_view(weight), dtrain::tensor_view(gradient)}};
  }
  std::vector<float> weight;
  std::vector<float> gradient;
};
