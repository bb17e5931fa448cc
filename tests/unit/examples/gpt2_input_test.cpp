#include <filesystem>

#include "examples/gpt2/options.hpp"
#include "examples/gpt2/sequences.hpp"
#include "examples/gpt2/summary.hpp"
#include "examples/gpt2/text.hpp"
#include "examples/shared/hook_choice.hpp"
#include "support/temporary_directory.hpp"
#include "unit/examples/prelude.hpp"

namespace {

gpt2::Options parse(std::vector<std::string> flags) {
  return examples_test::parsed(gpt2::parse_options, std::move(flags));
}

/// What `f` throws, which is to be one line.
template <class F>
std::string sentence(F f) {
  try {
    f();
  } catch (const dtrain::Error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string as_string(const std::vector<std::uint8_t>& text) {
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("a folder's text is that of its files in the order of their names, links left out") {
  const support::TemporaryDirectory folder;
  write(folder.path + "/b", "second\n");
  write(folder.path + "/a", std::string("first\0", 6));
  std::filesystem::create_symlink("a", folder.path + "/c");
  std::filesystem::create_directory(folder.path + "/d");
  CHECK(as_string(gpt2::read_folder(folder.path)) == std::string("first\0second\n", 13));
  CHECK(as_string(gpt2::read_text(folder.path + "/c")) == std::string("first\0", 6));
}

TEST_CASE("a text that is missing, no file or too large is refused in one sentence") {
  const support::TemporaryDirectory folder;
  CHECK(support::contains(sentence([&] { gpt2::read_folder(folder.path); }), "has no files"));
  CHECK(support::contains(sentence([&] { gpt2::read_folder(folder.path + "/none"); }), "base-files cannot be read"));
  CHECK(support::contains(sentence([&] { gpt2::read_text(folder.path + "/none"); }), "--data=FILE"));
  CHECK(support::contains(sentence([&] { gpt2::read_text(folder.path); }), "is not a file"));
  CHECK(support::contains(sentence([&] { gpt2::read_text("/dev/zero"); }), "is not a file"));
  write(folder.path + "/large", "");
  std::filesystem::resize_file(folder.path + "/large", gpt2::most_text_bytes);
  CHECK(gpt2::read_folder(folder.path).size() == gpt2::most_text_bytes);
  write(folder.path + "/one_more", "x");
  CHECK(support::contains(sentence([&] { gpt2::read_folder(folder.path); }), "larger than 64 MiB"));
}

TEST_CASE("sequences follow each other in the text, with the next bytes as their targets") {
  const std::string text = "abcdefghijklm";
  const gpt2::Sequences sequences({text.begin(), text.end()}, 3, 2);
  CHECK(sequences.count() == 4);
  gpt2::Batch batch;
  sequences.gather(std::array<std::size_t, 2>{3, 0}, batch);
  CHECK(as_string(batch.inputs) == "jklabc");
  CHECK(as_string(batch.targets) == "klmbcd");
  CHECK(gpt2::Sequences({text.begin(), text.end()}, 3, 3).count() == 3);  // the fourth fills no batch
  CHECK(gpt2::Sequences({text.begin(), text.end()}, 6, 2).count() == 2);
  CHECK(support::contains(sentence([&] {
                            gpt2::Sequences({text.begin(), text.end() - 1}, 6, 2);
                          }),
                          "the text has 12 bytes, but a batch of 2 sequences needs 13"));
}

TEST_CASE("gpt2's flags have the defaults of its help") {
  const gpt2::Options options = parse({});
  CHECK(options.steps == 200);
  CHECK(options.global_batch == 16);
  CHECK(options.shape.layers == 4);
  CHECK(options.shape.channels == 128);
  CHECK(options.shape.heads == 4);
  CHECK(options.shape.context == 128);
  CHECK(options.seed == 1);
  CHECK_FALSE(options.is_bf16);
  CHECK(options.zero == 0);
  CHECK(options.hook.is_none());
  CHECK_FALSE(options.measures_plan);
  CHECK(options.checkpoint.empty());
  CHECK(options.checkpoint_steps == 50);
}

TEST_CASE("gpt2's flags are read, and values that cannot be meant are refused") {
  const gpt2::Options options =
      parse({"--steps=7", "--layers", "2", "--channels=24", "--heads=3", "--context=16", "--global-batch=8",
             "--rate=0.5", "--clip=1.5", "--seed=9", "--data=t", "--zero=2", "--dtype=bf16", "--bucket-mib=0.5",
             "--hook=none", "--checkpoint=c", "--checkpoint-steps=5", "--summary=s", "--help"});
  CHECK(options.steps == 7);
  CHECK(options.shape.layers == 2);
  CHECK(options.shape.channels == 24);
  CHECK(options.shape.heads == 3);
  CHECK(options.shape.context == 16);
  CHECK(options.global_batch == 8);
  CHECK(options.rate == 0.5F);
  CHECK(options.clip == 1.5F);
  CHECK(options.seed == 9);
  CHECK(options.data == "t");
  CHECK(options.zero == 2);
  CHECK(options.is_bf16);
  CHECK(options.bucket_bytes == 524288);
  CHECK(options.checkpoint == "c");
  CHECK(options.checkpoint_steps == 5);
  CHECK(options.summary == "s");
  CHECK(options.help);
  CHECK(parse({"--hook=powersgd:4", "--plan=measured"}).hook.argument == 4);
  CHECK(parse({"--plan=measured"}).measures_plan);
  CHECK(parse({"--load=l", "--save=s"}).load == "l");
  CHECK(parse({"--load=l", "--save=s"}).save == "s");
  for (const char* flag :
       {"--steps=0", "--layers=101", "--channels=x", "--heads=0", "--context=5000", "--global-batch=-1", "--rate=2",
        "--rate=nan", "--clip=-1", "--data=", "--zero=3", "--dtype=f16", "--bucket-mib=-1", "--hook=f64", "--plan=fast",
        "--checkpoint-steps=0", "--epochs=3", "more"}) {
    CAPTURE(flag);
    CHECK(support::contains(sentence([&] { parse({flag}); }), "; --help shows the flags"));
  }
  CHECK(support::contains(sentence([] { parse({"--channels=10"}); }),
                          "--channels is 10, which 4 heads do not divide evenly"));
  CHECK(support::contains(sentence([] {
                            parse({"--zero=1", "--hook=bf16"});
                          }),
                          "--hook=bf16 is for whole f32 gradients and cannot be used with --zero"));
  CHECK(support::contains(sentence([] {
                            parse({"--dtype=bf16", "--hook=topk:5"});
                          }),
                          "cannot be used with --dtype=bf16"));
  CHECK(support::contains(sentence([] { parse({"--zero=1", "--plan=measured"}); }), "cannot be used with --plan"));
}

TEST_CASE("a hook's name has its argument behind a colon, where it takes one") {
  for (const char* name : {"none", "bf16", "f16", "bf16:error-feedback"}) {
    CAPTURE(name);
    CHECK(shared::hook_choice("--hook", name).name == name);
  }
  const shared::HookChoice choice = shared::hook_choice("--hook", "topk:0.5");
  CHECK(choice.text == "topk:0.5");
  CHECK(choice.name == "topk");
  CHECK(choice.argument == 0.5);
  CHECK(shared::hook_choice("--hook", "local:8").argument == 8);
  for (const char* name : {"", "powersgd", "topk", "local", "power-sgd", "bf16:", "f16:error-feedback", "none:2"}) {
    CAPTURE(name);
    CHECK(support::contains(sentence([&] { shared::hook_choice("--hook", name); }), "powersgd:RANK, topk:PERCENT"));
  }
  CHECK(sentence([] { shared::hook_choice("--hook", "powersgd:0"); }) ==
        "RANK of --hook=powersgd:RANK is \"0\" instead of an integer from 1 to 1024; --help shows the flags");
  for (const char* name : {"powersgd:", "powersgd:1.5", "topk:101", "topk:x", "local:-1", "local:0"}) {
    CAPTURE(name);
    CHECK(support::contains(sentence([&] { shared::hook_choice("--hook", name); }), "instead of a"));
  }
  CHECK(support::contains(sentence([] { shared::hook_choice("--hook", "topk:0"); }), "would send nothing"));
}

TEST_CASE("gpt2's help names every flag") {
  for (const gpt2::detail::Flag& flag : gpt2::detail::flags) {
    CAPTURE(flag.name);
    CHECK(gpt2::help_text.find("\n  " + std::string(flag.name)) != std::string_view::npos);
  }
}

TEST_CASE("gpt2's summary has one field a line") {
  gpt2::Summary summary;
  summary.losses = {5.5, 1.0 / 0.0};
  summary.parameters_digest = "ab";
  CHECK(gpt2::to_json(summary) ==
        "{\n  \"world_size\": 1,\n  \"steps\": 0,\n  \"final_loss\": 0,\n  \"step_ms\": 0,\n"
        "  \"exposed_ms_per_step\": 0,\n  \"bytes_sent_per_step\": 0,\n  \"state_bytes_per_rank\": 0,\n"
        "  \"optimizer_bytes\": 0,\n  \"gradient_bytes\": 0,\n  \"parameters\": 0,\n  \"losses\": [5.5, null],\n"
        "  \"parameters_digest\": \"ab\"\n}\n");
}
