#pragma once
/// @file
/// PTX on the CPU: the kernels that dtrain writes as text are parsed and run, thread after thread, each to the next
/// barrier of its block.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulation {

/// One `.entry` of a PTX text, of as much of the language as dtrain's kernels use; everything else is refused.
class PtxKernel {
 public:
  enum class Opcode : std::uint8_t {
    move,
    pack,
    unpack,
    add_u32,
    add_u64,
    sub_u32,
    mul_u32,
    mad_u32,
    mad_wide,
    mul_wide,
    min_u32,
    and_bits,
    or_bits,
    shr_u32,
    shl_b32,
    set_ge_u32,
    set_ge_u64,
    set_gt_u32,
    set_ne_u32,
    set_ne_u64,
    set_lt_f64,
    set_nan_f32,
    set_eq_f32,
    set_eq_f64,
    select,
    f32_of_f16,
    f64_of_f32,
    f32_of_f64,
    f16_of_f32,
    u16_of_u32,
    add_f32,
    sub_f32,
    mul_f32,
    div_f32,
    sqrt_f32,
    mul_f64,
    add_f64,
    div_f64,
    sqrt_f64,
    fma_f64,
    load_parameter,
    load,
    store,
    load_shared,
    store_shared,
    barrier,
    bra,
    ret
  };

  /// Whether the text was understood; `error()` says why not.
  explicit PtxKernel(const std::string& text);
  bool is_valid() const noexcept { return error_.empty(); }
  const std::string& error() const noexcept { return error_; }
  /// Of the .entry.
  const std::string& name() const noexcept { return name_; }

  /// The values that the addresses in `arguments` point to, as a launch takes them.
  std::vector<std::byte> packed(void* const* arguments) const;
  /// Whether this is the first call, of any thread: then a GPU loads the kernel.
  bool is_first_launch() const noexcept { return !is_launched_.exchange(true, std::memory_order_relaxed); }
  /// Ends the process at an address that is not the device's, as a GPU ends the context.
  void run(std::uint32_t blocks, std::uint32_t threads, const std::vector<std::byte>& parameters) const;

 private:
  struct Operand {
    enum class Kind : std::uint8_t { none, reg, immediate, address, parameter } kind = Kind::none;
    std::uint64_t value = 0;           // a register's index, an immediate's value, a parameter's offset
    std::uint64_t offset = 0;          // added to an address
    std::vector<std::uint64_t> lanes;  // the registers of a vector
  };
  struct Instruction {
    Opcode opcode{};
    int predicate = -1;
    bool is_negated = false;
    std::size_t bytes = 0;  // of an element that is read or written
    Operand operands[4];
    std::string label;
    std::size_t target = 0;
  };
  static constexpr std::uint64_t block_register = 0;
  static constexpr std::uint64_t thread_register = 1;
  static constexpr std::uint64_t blocks_register = 2;

  struct Parameter {
    std::size_t offset;
    std::size_t bytes;
  };
  struct Thread {
    std::vector<std::uint64_t> registers;
    std::size_t at = 0;
    bool is_done = false;
  };

  void declare_parameter(const std::string& line);
  void declare_registers(const std::string& line);
  void declare_shared(const std::string& line);
  void add_instruction(std::string line);
  /// Gives a move of two halves its opcode, and refuses other vectors outside of memory.
  void name_vector_move(Instruction& instruction, const std::string& line);
  Operand operand_of(const std::string& text);
  std::uint64_t register_of(const std::string& name);
  /// To the next barrier, or to the end.
  void run_thread(Thread& thread, const std::vector<std::byte>& parameters, std::vector<std::byte>& shared) const;
  void refuse(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

  std::string name_;
  std::string error_;
  mutable std::atomic<bool> is_launched_{false};
  std::map<std::string, std::uint64_t> registers_;
  std::map<std::string, Parameter> parameters_;
  std::vector<Parameter> parameter_order_;
  std::string shared_name_;
  std::size_t shared_bytes_ = 0;
  std::map<std::string, std::size_t> labels_;
  std::vector<Instruction> instructions_;
};

}  // namespace emulation
