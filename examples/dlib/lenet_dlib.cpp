// LeNet on Fashion-MNIST by dlib's own layers, loss and solver. dtrain averages the gradients of each layer while dlib
// computes those of the layers below: under each layer lies one that has no parameters, and whose backward() says so.
//   lenet_dlib --nproc-per-node=2
//   lenet_dlib --nproc-per-node=4 6400 /usr/share/datasets/fashion-mnist    # images, folder of the data set

#include <dlib/dnn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "../fashion_mnist/idx.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// A dlib layer that changes nothing. Its backward pass runs when the layer above it has its gradient.
class ready_ {
 public:
  dtrain::Step* step = nullptr;   ///< null: nothing is announced, as in the first pass
  std::size_t parameter_above{};  ///< of the layer above, in the wrapper's list

  template <class Subnet>
  void setup(const Subnet&) {}

  void forward_inplace(const dlib::tensor& input, dlib::tensor& output) {
    if (!dlib::is_same_object(input, output)) dlib::tt::affine_transform(output, input, 1);
  }

  void backward_inplace(const dlib::tensor& gradient, dlib::tensor& gradient_below, dlib::tensor&) {
    if (step != nullptr) step->ready(parameter_above);
    if (!dlib::is_same_object(gradient, gradient_below)) dlib::tt::add(gradient_below, gradient_below, gradient);
  }

  const dlib::tensor& get_layer_params() const { return none_; }
  dlib::tensor& get_layer_params() { return none_; }

  friend void serialize(const ready_&, std::ostream& out) { dlib::serialize("ready_", out); }
  friend void deserialize(ready_&, std::istream& in) {
    std::string name;
    dlib::deserialize(name, in);
  }
  friend std::ostream& operator<<(std::ostream& out, const ready_&) { return out << "ready"; }
  friend void to_xml(const ready_&, std::ostream& out) { out << "<ready/>\n"; }

 private:
  dlib::resizable_tensor none_;
};

template <class Subnet>
using ready = dlib::add_layer<ready_, Subnet>;

template <class Subnet>
using pooled = dlib::max_pool<2, 2, 2, 2, dlib::relu<Subnet>>;

constexpr unsigned long classes = 10;

using Image = dlib::matrix<unsigned char>;
using LeNet = dlib::loss_multiclass_log<dlib::fc<
    classes,
    ready<dlib::relu<dlib::fc<
        84, ready<dlib::relu<dlib::fc<
                120, ready<pooled<dlib::con<16, 5, 5, 1, 1,
                                            ready<pooled<dlib::con<6, 5, 5, 1, 1, dlib::input<Image>>>>>>>>>>>>>>>;

/// dlib's tensors as dtrain's parameters, the output's layer first. dlib makes the tensors in the first pass.
std::vector<dtrain::Parameter> parameters_of(LeNet& net) {
  std::vector<dlib::tensor*> gradients(LeNet::num_layers);
  dlib::visit_layer_parameter_gradients(net, [&](std::size_t i, dlib::tensor& gradient) { gradients[i] = &gradient; });
  std::vector<dtrain::Parameter> list;
  dlib::visit_layer_parameters(net, [&](std::size_t i, dlib::tensor& value) {
    if (value.size() == 0) return;
    list.push_back({"layer" + std::to_string(i), dtrain::tensor_view(value.host(), {value.size()}),
                    dtrain::tensor_view(gradients[i]->host(), {gradients[i]->size()})});
  });
  return list;
}

constexpr std::size_t global_batch = 64;

struct Batch {
  std::vector<Image> images;
  std::vector<unsigned long> labels;
};

struct Data {
  fashion_mnist::IdxArray images;
  fashion_mnist::IdxArray labels;

  /// @throws dtrain::Error (protocol) for files that do not belong together
  explicit Data(const std::string& folder)
      : images(fashion_mnist::read_idx(folder + "/train-images-idx3-ubyte.gz", 3)),
        labels(fashion_mnist::read_idx(folder + "/train-labels-idx1-ubyte.gz", 1)) {
    const auto refuse = [&](const std::string& problem) {
      throw dtrain::Error(dtrain::Errc::protocol, "the data set in " + folder + " cannot be used: " + problem +
                                                      "; name the folder of Fashion-MNIST as the second argument");
    };
    if (images.extents[0] != labels.extents[0]) {
      refuse("it has " + std::to_string(images.extents[0]) + " images and " + std::to_string(labels.extents[0]) +
             " labels");
    }
    if (images.extents[1] != 28 || images.extents[2] != 28) refuse("its images are not 28 x 28");
    const std::uint8_t highest = *std::max_element(labels.elements.begin(), labels.elements.end());
    if (highest >= classes) refuse("it has the label " + std::to_string(highest) + ", which is none of 0 to 9");
  }

  Batch batch(std::span<const std::size_t> samples) const {
    Batch batch;
    for (const std::size_t sample : samples) {
      const auto rows = static_cast<long>(images.extents[1]);
      const auto columns = static_cast<long>(images.extents[2]);
      batch.images.emplace_back(rows, columns);
      std::copy_n(images.elements.begin() + static_cast<std::ptrdiff_t>(sample) * rows * columns, rows * columns,
                  batch.images.back().begin());
      batch.labels.push_back(labels.elements[sample]);
    }
    return batch;
  }
};

/// The number of images that the first argument names. @throws dtrain::Error (usage)
std::size_t image_count(std::string_view text) {
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < global_batch) {
    throw dtrain::Error(dtrain::Errc::usage, "the first argument is '" + std::string(text.substr(0, 100)) +
                                                 "'; give the number of images to train on, at least " +
                                                 std::to_string(global_batch));
  }
  return count;
}

int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  const std::size_t count = image_count(arguments.size() > 1 ? arguments[1] : "6400");
  const Data data(arguments.size() > 2 ? arguments[2] : "/usr/share/datasets/fashion-mnist");
  const dtrain::DistributedSampler sampler{
      group,
      {.dataset_size = std::min(count, data.labels.elements.size()), .global_batch = global_batch, .drop_last = true}};

  LeNet net;
  const Batch first = data.batch(sampler.batches(0)[0]);
  net.compute_parameter_gradients(first.images.begin(), first.images.end(), first.labels.begin());
  dtrain::DistributedDataParallel ddp{parameters_of(net), group};

  const auto announce_to = [&](dtrain::Step* step) {
    std::size_t above = 0;
    dlib::visit_computational_layers(net, [&](auto& layer) {
      if constexpr (std::is_same_v<std::decay_t<decltype(layer)>, ready_>) {
        layer.step = step;
        layer.parameter_above = above++;
      }
    });
    return above;
  };

  std::vector<dlib::sgd> solvers(LeNet::num_computational_layers, dlib::sgd(0.0005F, 0.9F));
  dlib::resizable_tensor input;
  for (const std::span<const std::size_t> samples : sampler.batches(0)) {
    const Batch batch = data.batch(samples);
    net.to_tensor(batch.images.begin(), batch.images.end(), input);
    dtrain::Step step = ddp.begin();
    const std::size_t announced = announce_to(&step);
    net.compute_parameter_gradients(input, batch.labels.begin());
    step.ready(announced);  // the lowest layer, under which the images lie
    step.finish();
    net.update_parameters(solvers, 0.01);
  }

  std::array<double, 2> sums{};  // losses and samples
  for (const std::span<const std::size_t> samples : sampler.evaluation()) {
    const Batch batch = data.batch(samples);
    sums[0] += net.compute_loss(batch.images.begin(), batch.images.end(), batch.labels.begin()) *
               static_cast<double>(samples.size());
    sums[1] += static_cast<double>(samples.size());
  }
  group.all_reduce(sums, dtrain::ReduceOp::sum);
  if (group.rank() == 0) {
    std::printf("training loss %.7f after %zu steps on %d rank(s)\n", sums[0] / sums[1], sampler.steps_per_epoch(),
                group.world_size());
  }
  return 0;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
