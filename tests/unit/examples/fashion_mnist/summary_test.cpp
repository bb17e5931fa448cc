#include "summary.hpp"

#include "unit/examples/prelude.hpp"

TEST_CASE("a summary is JSON with the fields that scripts rely on") {
  fashion_mnist::Summary summary{.world_size = 2,
                                 .epochs = 3,
                                 .test_accuracy = 0.875,
                                 .final_loss = 0.1,
                                 .seconds = 4,
                                 .samples_per_second = 45000.5,
                                 .samples_per_rank = {90000, 90000},
                                 .bytes_reduced = 662765400,
                                 .exposed_ms_per_step = 0.5,
                                 .hidden_ms_per_step = 1.25,
                                 .parameters_digest = "ab"};
  CHECK(fashion_mnist::to_json(summary) ==
        "{\n  \"world_size\": 2,\n  \"epochs\": 3,\n  \"test_accuracy\": 0.875,\n"
        "  \"final_loss\": 0.10000000000000001,\n  \"seconds\": 4,\n  \"samples_per_second\": 45000.5,\n"
        "  \"samples_per_rank\": [90000, 90000],\n  \"bytes_reduced\": 662765400,\n  \"exposed_ms_per_step\": 0.5,\n"
        "  \"hidden_ms_per_step\": 1.25,\n"
        "  \"parameters_digest\": \"ab\"\n}\n");
}

TEST_CASE("what JSON cannot say is null") {
  fashion_mnist::Summary summary;
  summary.final_loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(fashion_mnist::to_json(summary).find("\"final_loss\": null") != std::string::npos);
  summary.hidden_ms_per_step = std::numeric_limits<double>::infinity();
  CHECK(fashion_mnist::to_json(summary).find("\"hidden_ms_per_step\": null") != std::string::npos);
}
