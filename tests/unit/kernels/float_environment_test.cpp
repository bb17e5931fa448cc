#include "dtrain/kernels/float_environment.hpp"

#include <cfenv>

#include "unit/kernels/prelude.hpp"

namespace {

/// Rounding upward and, where the processor has it, subnormals flushed in results and taken for zero in operands.
class HostileEnvironment {
 public:
  HostileEnvironment() {
    std::fegetenv(&saved_);
    std::fesetround(FE_UPWARD);
#if DTRAIN_X86_64
    std::uint32_t control = 0;
    asm volatile("stmxcsr %0" : "=m"(control));
    control |= 0x8040;
    asm volatile("ldmxcsr %0" ::"m"(control));
#endif
  }
  ~HostileEnvironment() {
    std::fesetenv(&saved_);
  }
  HostileEnvironment(const HostileEnvironment&) = delete;
  HostileEnvironment& operator=(const HostileEnvironment&) = delete;

 private:
  std::fenv_t saved_{};
};

#if DTRAIN_X86_64
std::uint32_t control_register() {
  std::uint32_t control = 0;
  asm volatile("stmxcsr %0" : "=m"(control));
  return control;
}
#endif

}  // namespace

TEST_CASE(
    "what the caller's thread has set for rounding and subnormals changes no bit, and is there again afterwards") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    support::Ranks inputs;
    for (const std::uint64_t rank : {1U, 2U, 3U})
      inputs.push_back(support::awkward_bytes(dtype, 1001, rank));
    for (const ReduceOp op : support::all_ops) {
      support::for_each_isa([&](Isa isa) {
        INFO(dtrain::name(dtype), " ", dtrain::name(op));
        const Reduction reduction = Reduction::of(dtype, op, isa);
        const std::vector<std::byte> expected = support::reduce_bytes(reduction, inputs, 1001);
        std::vector<std::byte> result;
        int rounding = 0;
        {
          const HostileEnvironment hostile;
          result = support::reduce_bytes(reduction, inputs, 1001);
          rounding = std::fegetround();
        }
        CHECK((result == expected));
        CHECK(rounding == FE_UPWARD);
      });
    }
  }
}

#if DTRAIN_X86_64
TEST_CASE("the control register is the default's inside the scope and the caller's behind it") {
  const HostileEnvironment hostile;
  const std::uint32_t before = control_register();
  std::uint32_t inside = 0;
  {
    const dtrain::kernels::DefaultFloatEnvironment environment;
    inside = control_register();
  }
  CHECK((inside & ~0x3fU) == 0x1f80);
  CHECK(control_register() == before);
  CHECK((before & 0xe040U) == 0xc040U);
}
#endif
