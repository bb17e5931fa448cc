// Weights for Python and from it. Without a file it saves a layer to weights.safetensors in the folder, as PyTorch
// names it; with one it loads the layer of a file that another program has written, under its names and in its types.
//   exchange_weights --nproc-per-node=2 FOLDER
//   exchange_weights --nproc-per-node=2 FOLDER model.safetensors

#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;

struct Layer {
  std::vector<float> weight{1, 2, 3, 4, 5, 6};
  std::vector<float> bias{7, 8};
  std::vector<float> weight_gradient = std::vector<float>(6);
  std::vector<float> bias_gradient = std::vector<float>(2);

  std::vector<dtrain::Parameter> parameters() {
    return {
        {"fc.weight", dtrain::tensor_view(weight.data(), {2, 3}), dtrain::tensor_view(weight_gradient.data(), {2, 3})},
        {"fc.bias", dtrain::tensor_view(bias), dtrain::tensor_view(bias_gradient)}};
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    Layer layer;
    const std::string folder = arguments.size() > 1 ? std::string(arguments[1]) + "/" : "";
    if (arguments.size() > 2) {
      if (group.rank() == 0) {
        for (const std::string& name : dtrain::safetensors_names(folder + arguments[2])) {
          std::printf("the file has %s\n", name.c_str());
        }
      }
      dtrain::load_safetensors(group, folder + arguments[2], layer,
                               {.rename = [](const std::string& name) { return "model." + name; }, .extra = true});
    } else {
      // In Python: net.load_state_dict(safetensors.torch.load_file("weights.safetensors"))
      dtrain::save_safetensors(group, folder + "weights.safetensors", layer);
    }
    std::printf("the weight begins with %g, the bias with %g\n", layer.weight[0], layer.bias[0]);
    return 0;
  });
}
