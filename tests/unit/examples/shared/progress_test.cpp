#include "examples/shared/progress.hpp"

#include "unit/examples/prelude.hpp"

TEST_CASE("the progress line shows epoch, bar, step, loss and speed in a fixed width") {
  using shared::progress_text;
  CHECK(progress_text(
            {.epoch = 2, .epochs = 3, .step = 118, .steps = 235, .loss = 0.43119, .samples_per_second = 29507.6}) ==
        "epoch 2/3 [##############--------------] 118/235  loss 0.4312  29,508 samples/s");
  CHECK(progress_text({.epoch = 1, .epochs = 3, .step = 1, .steps = 235, .loss = 2.3, .samples_per_second = 999}) ==
        "epoch 1/3 [----------------------------]   1/235  loss 2.3000  999 samples/s");
  CHECK(
      progress_text({.epoch = 3, .epochs = 3, .step = 235, .steps = 235, .loss = 0.2, .samples_per_second = 1234567}) ==
      "epoch 3/3 [############################] 235/235  loss 0.2000  1,234,567 samples/s");
}
