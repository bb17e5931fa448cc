#include "options.hpp"

#include "unit/examples/prelude.hpp"

namespace {

using dtrain::stream::host::Progress;

fashion_mnist::Options parse(std::vector<std::string> flags) {
  return examples_test::parsed(fashion_mnist::parse_options, std::move(flags));
}

std::string sentence(std::vector<std::string> flags) {
  try {
    parse(std::move(flags));
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::usage));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("without flags the training is the demo's") {
  const fashion_mnist::Options options = parse({});
  CHECK(options.epochs == 3);
  CHECK(options.global_batch == 256);
  CHECK(options.seed == 1);
  CHECK(options.data == "/usr/share/datasets/fashion-mnist");
  CHECK_FALSE(options.bucket_bytes.has_value());
  CHECK(options.progress == Progress::automatic);
  CHECK(options.precision == "f32");
  CHECK(options.hook.is_none());
  CHECK_FALSE(options.shuffle_test_labels);
  CHECK_FALSE(options.perturb_rank.has_value());
  CHECK(options.summary.empty());
  CHECK(options.checkpoint.empty());
  CHECK(options.save_parameters.empty());
  CHECK_FALSE(options.help);
}

TEST_CASE("a flag's value follows an equals sign or is the next argument") {
  const fashion_mnist::Options options = parse(
      {"--epochs=7", "--global-batch", "64", "--seed=18446744073709551615", "--data=/a=b", "--bucket-mib=0.25",
       "--progress", "caller", "--save-parameters=p", "--summary", "s", "--shuffle-test-labels", "--perturb-rank=3",
       "--checkpoint=c", "--timeline=t", "--checkpoint-steps=9", "--precision=bf16", "--hook=topk:2.5", "--help"});
  CHECK(options.epochs == 7);
  CHECK(options.global_batch == 64);
  CHECK(options.seed == 18446744073709551615U);
  CHECK(options.data == "/a=b");
  CHECK(options.bucket_bytes == 262144);
  CHECK(options.progress == Progress::caller);
  CHECK(options.save_parameters == "p");
  CHECK(options.summary == "s");
  CHECK(options.checkpoint == "c");
  CHECK(options.timeline == "t");
  CHECK(options.checkpoint_steps == 9);
  CHECK(options.precision == "bf16");
  CHECK(options.hook.text == "topk:2.5");
  CHECK(options.hook.name == "topk");
  CHECK(options.hook.argument == 2.5);
  CHECK(options.shuffle_test_labels);
  CHECK(options.perturb_rank == 3);
  CHECK(options.help);
}

TEST_CASE("a flag that is not known is refused by name") {
  CHECK(sentence({"--epoch=3"}) == "the flag \"--epoch=3\" is not known; --help shows the flags");
  CHECK(sentence({"stray"}) == "the flag \"stray\" is not known; --help shows the flags");
  CHECK(sentence({""}) == "the flag \"\" is not known; --help shows the flags");
}

TEST_CASE("a value that cannot be meant is refused with what is possible") {
  CHECK(sentence({"--epochs=three"}) ==
        "--epochs is \"three\" instead of an integer from 1 to 10000; --help shows the flags");
  for (const char* flag :
       {"--epochs=0", "--epochs=-1", "--epochs=3x", "--epochs= 3", "--epochs=99999999999999999999", "--global-batch=0",
        "--global-batch=1.5", "--seed=-1", "--seed=18446744073709551616", "--bucket-mib=nan", "--bucket-mib=-1",
        "--bucket-mib=inf", "--bucket-mib=2000", "--perturb-rank=-1"}) {
    CAPTURE(flag);
    CHECK(sentence({flag}).find("instead of") != std::string::npos);
  }
  CHECK(sentence({"--progress=fast"}).find("automatic, thread and caller") != std::string::npos);
}

TEST_CASE("a missing or superfluous value is refused") {
  CHECK(sentence({"--epochs"}) == "--epochs needs a value; --help shows the flags");
  CHECK(sentence({"--summary="}) == "--summary needs a value; --help shows the flags");
  CHECK(sentence({"--shuffle-test-labels=yes"}) == "--shuffle-test-labels takes no value; --help shows the flags");
}

TEST_CASE("the help names every flag") {
  for (const fashion_mnist::detail::Flag& flag : fashion_mnist::detail::flags) {
    CAPTURE(std::string(flag.name));
    CHECK(fashion_mnist::help_text.find("  " + std::string(flag.name)) != std::string_view::npos);
  }
}
