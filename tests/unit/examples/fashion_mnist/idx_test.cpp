#include "idx.hpp"

#include <stdlib.h>
#include <zlib.h>

#include <initializer_list>

#include "dataset.hpp"
#include "unit/examples/prelude.hpp"

namespace {

using fashion_mnist::read_idx;

/// A folder that goes with the test.
class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  Folder(const Folder&) = delete;
  ~Folder() {
    for (const std::string& file : files_)
      ::unlink(file.c_str());
    ::rmdir(path_.c_str());
  }

  const std::string& path() const { return path_; }

  std::string write(const std::string& name, const std::string& bytes) {
    files_.push_back(path_ + '/' + name);
    std::ofstream(files_.back(), std::ios::binary) << bytes;
    return files_.back();
  }

 private:
  std::string path_ = "/tmp/dtrain-idx-XXXXXX";
  std::vector<std::string> files_;
};

std::string header(unsigned char type, std::initializer_list<std::uint32_t> extents) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(extents.size())};
  for (const std::uint32_t extent : extents) {
    for (const int shift : {24, 16, 8, 0})
      bytes.push_back(static_cast<char>(extent >> shift));
  }
  return bytes;
}

std::string gzip(const std::string& bytes) {
  Folder folder;
  const std::string path = folder.write("x.gz", "");
  const gzFile file = ::gzopen(path.c_str(), "wb");
  REQUIRE(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  REQUIRE(::gzclose(file) == Z_OK);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What reading `bytes` as a file throws.
std::string sentence(const std::string& bytes, std::uint32_t dimensions) {
  Folder folder;
  const std::string path = folder.write("x.gz", bytes);
  try {
    read_idx(path, dimensions);
  } catch (const dtrain::Error& error) {
    CHECK_CONTAINS(error.what(), path, "apt install", "--data=DIR");
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("an IDX file is read with its extents, compressed or not") {
  const std::string bytes = header(8, {2, 3}) + std::string("\x00\x01\x02\xfd\xfe\xff", 6);
  for (const std::string& content : {bytes, gzip(bytes)}) {
    Folder folder;
    const fashion_mnist::IdxArray array = read_idx(folder.write("x.gz", content), 2);
    CHECK(array.extents == std::vector<std::uint32_t>{2, 3});
    CHECK(array.elements == std::vector<std::uint8_t>{0, 1, 2, 253, 254, 255});
  }
}

TEST_CASE("a missing data file is named, with what to do") {
  CHECK_ERROR(read_idx("/nonexistent/x.gz", 1), std::errc::no_such_file_or_directory, "/nonexistent/x.gz",
              "No such file", "apt install --reinstall dataset-fashion-mnist");
}

TEST_CASE("every truncation of a compressed data file is noticed") {
  const std::string bytes = gzip(header(8, {40}) + std::string("0123456789abcdefghijABCDEFGHIJ!$%&/()=?+", 40));
  Folder folder;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(read_idx(folder.write("x.gz", bytes.substr(0, length)), 1), dtrain::Error);
  }
  CHECK_CONTAINS(sentence(bytes.substr(0, bytes.size() / 2), 1), "ends too early");
}

TEST_CASE("a damaged compressed data file is noticed by its checksum") {
  std::string bytes = gzip(header(8, {40}) + std::string("0123456789abcdefghijABCDEFGHIJ!$%&/()=?+", 40));
  bytes[bytes.size() - 6] = static_cast<char>(~bytes[bytes.size() - 6]);
  CHECK_CONTAINS(sentence(bytes, 1), "check");
}

TEST_CASE("a data file that is not what it should be is refused with the reason") {
  CHECK_CONTAINS(sentence("", 1), "it ends within its header");
  CHECK_CONTAINS(sentence("<html>not found</html>", 1), "not an IDX file");
  CHECK_CONTAINS(sentence(gzip("garbage, but compressed"), 3), "not an IDX file");
  CHECK_CONTAINS(sentence(gzip(header(8, {1}) + "x"), 3), "not an IDX file of bytes in 3 dimension(s)");
  CHECK_CONTAINS(sentence(gzip(header(13, {1}) + "xxxx"), 1), "not an IDX file of bytes");
  CHECK_CONTAINS(sentence(gzip(header(8, {0})), 1), "impossible size");
  CHECK_CONTAINS(sentence(gzip(header(8, {0xffffffff, 0xffffffff, 0xffffffff})), 3), "impossible size");
  CHECK_CONTAINS(sentence(gzip(header(8, {5}) + "abc"), 1), "it ends after 3 of its 5 elements");
  CHECK_CONTAINS(sentence(gzip(header(8, {3}) + "abcd"), 1), "it goes on after its 3 elements");
  CHECK_CONTAINS(sentence(gzip(header(8, {1U << 30}) + "abcd"), 1), "it ends after 4 of its");
}

TEST_CASE("a data set whose files do not belong together is refused with both names") {
  const auto load = [](const std::string& images, const std::string& labels) -> std::string {
    Folder folder;
    folder.write("train-images-idx3-ubyte.gz", images);
    folder.write("train-labels-idx1-ubyte.gz", labels);
    try {
      const fashion_mnist::Dataset dataset = fashion_mnist::load_dataset(folder.path(), "train");
      return std::to_string(dataset.size()) + " samples";
    } catch (const dtrain::Error& error) {
      return error.what();
    }
  };
  const std::string two_images = gzip(header(8, {2, 28, 28}) + std::string(2 * 784, 'x'));
  CHECK(load(two_images, gzip(header(8, {2}) + std::string("\x00\x09", 2))) == "2 samples");
  CHECK_CONTAINS(load(two_images, gzip(header(8, {3}) + std::string(3, '\1'))), "has 2 images but");
  CHECK_CONTAINS(load(two_images, gzip(header(8, {2}) + "\x01\x0a")), "label 1 in");
  CHECK_CONTAINS(load(gzip(header(8, {1, 2, 2}) + "abcd"), gzip(header(8, {1}) + "\1")), "2 x 2 instead of 28 x 28");
}
