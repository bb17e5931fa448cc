/// @file
/// Reads PTX text, as far as ptx.hpp says.

#include "ptx.hpp"

#include <cstring>
#include <sstream>
#include <utility>

namespace emulation {
namespace {

using Opcode = PtxKernel::Opcode;

const std::map<std::string, Opcode>& opcodes() {
  static const std::map<std::string, Opcode> all{{"mov.b64", Opcode::move},
                                                 {"mov.b32", Opcode::move},
                                                 {"mov.u32", Opcode::move},
                                                 {"mov.f32", Opcode::move},
                                                 {"mov.f64", Opcode::move},
                                                 {"cvta.to.global.u64", Opcode::move},
                                                 {"cvt.u32.u16", Opcode::move},
                                                 {"add.u32", Opcode::add_u32},
                                                 {"add.u64", Opcode::add_u64},
                                                 {"sub.u32", Opcode::sub_u32},
                                                 {"mul.lo.u32", Opcode::mul_u32},
                                                 {"mad.lo.u32", Opcode::mad_u32},
                                                 {"mad.wide.u32", Opcode::mad_wide},
                                                 {"mul.wide.u32", Opcode::mul_wide},
                                                 {"min.u32", Opcode::min_u32},
                                                 {"and.b32", Opcode::and_bits},
                                                 {"and.b64", Opcode::and_bits},
                                                 {"and.pred", Opcode::and_bits},
                                                 {"or.b64", Opcode::or_bits},
                                                 {"shr.u32", Opcode::shr_u32},
                                                 {"shl.b32", Opcode::shl_b32},
                                                 {"setp.ge.u32", Opcode::set_ge_u32},
                                                 {"setp.ge.u64", Opcode::set_ge_u64},
                                                 {"setp.gt.u32", Opcode::set_gt_u32},
                                                 {"setp.ne.u32", Opcode::set_ne_u32},
                                                 {"setp.ne.u64", Opcode::set_ne_u64},
                                                 {"setp.lt.f64", Opcode::set_lt_f64},
                                                 {"setp.nan.f32", Opcode::set_nan_f32},
                                                 {"setp.eq.f32", Opcode::set_eq_f32},
                                                 {"setp.eq.f64", Opcode::set_eq_f64},
                                                 {"selp.b16", Opcode::select},
                                                 {"selp.b32", Opcode::select},
                                                 {"selp.b64", Opcode::select},
                                                 {"selp.f32", Opcode::select},
                                                 {"selp.f64", Opcode::select},
                                                 {"cvt.f32.f16", Opcode::f32_of_f16},
                                                 {"cvt.rn.f16.f32", Opcode::f16_of_f32},
                                                 {"cvt.f64.f32", Opcode::f64_of_f32},
                                                 {"cvt.rn.f32.f64", Opcode::f32_of_f64},
                                                 {"cvt.u16.u32", Opcode::u16_of_u32},
                                                 {"add.rn.f32", Opcode::add_f32},
                                                 {"sub.rn.f32", Opcode::sub_f32},
                                                 {"mul.rn.f32", Opcode::mul_f32},
                                                 {"div.rn.f32", Opcode::div_f32},
                                                 {"sqrt.rn.f32", Opcode::sqrt_f32},
                                                 {"mul.rn.f64", Opcode::mul_f64},
                                                 {"add.rn.f64", Opcode::add_f64},
                                                 {"div.rn.f64", Opcode::div_f64},
                                                 {"sqrt.rn.f64", Opcode::sqrt_f64},
                                                 {"fma.rn.f64", Opcode::fma_f64},
                                                 {"ld.param", Opcode::load_parameter},
                                                 {"ld.global", Opcode::load},
                                                 {"st.global", Opcode::store},
                                                 {"ld.shared", Opcode::load_shared},
                                                 {"st.shared", Opcode::store_shared},
                                                 {"bar.sync", Opcode::barrier},
                                                 {"bra", Opcode::bra},
                                                 {"ret", Opcode::ret}};
  return all;
}

std::string stripped(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Cuts at commas outside of braces.
std::vector<std::string> separated(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(stripped(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!stripped(part).empty()) parts.push_back(stripped(part));
  return parts;
}

std::size_t bytes_of(const std::string& type) {
  return type.empty() ? 0 : static_cast<std::size_t>(std::stoul(type.substr(type.find_first_of("0123456789"))) / 8);
}

}  // namespace

PtxKernel::PtxKernel(const std::string& text)
    : registers_{{"%ctaid.x", block_register}, {"%tid.x", thread_register}, {"%nctaid.x", blocks_register}} {
  std::istringstream lines(text);
  bool has_version = false;
  bool has_target = false;
  for (std::string line; std::getline(lines, line);) {
    line = stripped(line);
    has_version = has_version || line.rfind(".version ", 0) == 0;
    has_target = has_target || line.rfind(".target sm_", 0) == 0;
    if (line.empty() || line == "{" || line == "}" || line.rfind(".version", 0) == 0 || line.rfind(".target", 0) == 0 ||
        line == ".address_size 64") {
      continue;
    }
    if (line.rfind(".visible .entry ", 0) == 0) {
      name_ = line.substr(16, line.find('(') - 16);
    } else if (line.rfind(".param ", 0) == 0) {
      declare_parameter(line);
    } else if (line.rfind(".reg ", 0) == 0) {
      declare_registers(line);
    } else if (line.rfind(".shared ", 0) == 0) {
      declare_shared(line);
    } else if (line.back() == ':') {
      if (!labels_.emplace(line.substr(0, line.size() - 1), instructions_.size()).second) refuse("twice: " + line);
    } else if (line.back() == ';') {
      add_instruction(line.substr(0, line.size() - 1));
    } else {
      refuse("not understood: " + line);
    }
  }
  for (Instruction& instruction : instructions_) {
    if (instruction.opcode != Opcode::bra) continue;
    const auto found = labels_.find(instruction.label);
    if (found == labels_.end()) {
      refuse("no label " + instruction.label);
    } else {
      instruction.target = found->second;
    }
  }
  if (name_.empty() || !has_version || !has_target) refuse("no .version, .target or .entry");
  if (instructions_.empty() || instructions_.back().opcode != Opcode::ret) refuse("the last instruction is no ret");
}

// ".param .align 8 .b8 entries[3072]," or ".param .u32 entry_count,"
void PtxKernel::declare_parameter(const std::string& line) {
  std::istringstream words(line.substr(0, line.find_first_of(",)")));
  std::string word;
  std::string type;
  std::string name;
  std::size_t align = 0;
  for (words >> word; words >> word;) {
    if (word == ".align") {
      words >> align;
    } else if (word[0] == '.') {
      type = word.substr(1);
    } else {
      name = word;
    }
  }
  std::size_t bytes = bytes_of(type);
  align = align == 0 ? bytes : align;
  if (const std::size_t bracket = name.find('['); bracket != std::string::npos) {
    bytes *= std::stoul(name.substr(bracket + 1));
    name.resize(bracket);
  }
  std::size_t offset = parameter_order_.empty() ? 0 : parameter_order_.back().offset + parameter_order_.back().bytes;
  offset = (offset + align - 1) / align * align;
  if (offset + bytes > 4096) refuse("more than 4 KiB of parameters");
  parameter_order_.push_back({offset, bytes});
  parameters_[name] = parameter_order_.back();
}

// ".reg .u32 %a, %b;" or ".reg .b16 %t<8>;"
void PtxKernel::declare_registers(const std::string& line) {
  const std::string names = line.substr(line.find('%'), line.find(';') - line.find('%'));
  for (const std::string& name : separated(names)) {
    const std::size_t bracket = name.find('<');
    const std::size_t count = bracket == std::string::npos ? 1 : std::stoul(name.substr(bracket + 1));
    for (std::size_t i = 0; i < count; ++i) {
      const std::string one = bracket == std::string::npos ? name : name.substr(0, bracket) + std::to_string(i);
      if (!registers_.emplace(one, registers_.size()).second) refuse("twice: " + one);
    }
  }
}

// ".shared .align 8 .b8 partial[2048];", one array at address 0
void PtxKernel::declare_shared(const std::string& line) {
  const std::size_t bracket = line.find('[');
  const std::size_t space = line.rfind(' ', bracket);
  if (line.find(" .b8 ") == std::string::npos || bracket == std::string::npos || shared_bytes_ != 0) {
    return refuse("not understood: " + line);
  }
  shared_name_ = line.substr(space + 1, bracket - space - 1);
  shared_bytes_ = std::stoul(line.substr(bracket + 1));
  if (shared_bytes_ > 48 * 1024) refuse("more than 48 KiB of shared memory");
}

std::uint64_t PtxKernel::register_of(const std::string& name) {
  const auto found = registers_.find(name);
  if (found == registers_.end()) {
    refuse("no register " + name);
    return 0;
  }
  return found->second;
}

PtxKernel::Operand PtxKernel::operand_of(const std::string& text) {
  Operand operand;
  if (text[0] == '{') {
    operand.kind = Operand::Kind::reg;
    for (const std::string& name : separated(text.substr(1, text.size() - 2)))
      operand.lanes.push_back(register_of(name));
  } else if (text[0] == '[') {
    const std::string inner = text.substr(1, text.size() - 2);
    const std::size_t plus = inner.find('+');
    operand = operand_of(inner.substr(0, plus));
    operand.offset = plus == std::string::npos ? 0 : std::stoull(inner.substr(plus + 1));
    if (operand.kind == Operand::Kind::reg) operand.kind = Operand::Kind::address;
  } else if (text[0] == '%') {
    operand.kind = Operand::Kind::reg;
    operand.value = register_of(text);
    operand.lanes = {operand.value};
  } else if (text.rfind("0d", 0) == 0 || text.rfind("0f", 0) == 0) {
    operand.kind = Operand::Kind::immediate;  // the bits of a double, or of a float
    operand.value = std::stoull(text.substr(2), nullptr, 16);
  } else if (text[0] >= '0' && text[0] <= '9') {
    operand.kind = Operand::Kind::immediate;
    operand.value = std::stoull(text);
  } else if (text == shared_name_) {
    operand.kind = Operand::Kind::immediate;
  } else {
    const auto found = parameters_.find(text);
    if (found == parameters_.end()) refuse("no parameter " + text);
    operand.kind = Operand::Kind::parameter;
    operand.value = found == parameters_.end() ? 0 : found->second.offset;
  }
  return operand;
}

void PtxKernel::add_instruction(std::string line) {
  Instruction instruction;
  if (line[0] == '@') {
    const std::size_t space = line.find(' ');
    instruction.is_negated = line[1] == '!';
    instruction.predicate = static_cast<int>(
        register_of(line.substr(instruction.is_negated ? 2 : 1, space - (instruction.is_negated ? 2 : 1))));
    line = stripped(line.substr(space));
  }
  const std::size_t space = line.find(' ');
  const std::string opcode = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : stripped(line.substr(space));
  const std::string type = opcode.substr(opcode.rfind('.') + 1);
  const bool is_memory = opcode.rfind("ld.", 0) == 0 || opcode.rfind("st.", 0) == 0;
  if (is_memory) instruction.bytes = bytes_of(type);
  const std::size_t kept = is_memory ? opcode.find('.', 3) : std::string::npos;
  const auto found = opcodes().find(opcode.substr(0, kept));
  if (found == opcodes().end()) return refuse("no instruction " + opcode);
  instruction.opcode = found->second;
  if (instruction.opcode == Opcode::bra) {
    instruction.label = rest;
  } else {
    std::size_t i = 0;
    for (const std::string& part : separated(rest)) {
      if (i == std::size(instruction.operands)) return refuse("too many operands: " + line);
      instruction.operands[i++] = operand_of(part);
    }
  }
  if (!is_memory) name_vector_move(instruction, line);
  instructions_.push_back(std::move(instruction));
}

// "mov.b32 {%low, %high}, %word;" or "mov.b32 %word, {%low, %high};"
void PtxKernel::name_vector_move(Instruction& instruction, const std::string& line) {
  const std::size_t to = instruction.operands[0].lanes.size();
  const std::size_t from = instruction.operands[1].lanes.size();
  if (to < 2 && from < 2) return;
  if (line.rfind("mov.b32 ", 0) != 0 || to + from != 3) return refuse("not understood: " + line);
  instruction.opcode = to == 2 ? Opcode::unpack : Opcode::pack;
}

std::vector<std::byte> PtxKernel::packed(void* const* arguments) const {
  std::vector<std::byte> bytes(
      parameter_order_.empty() ? 0 : parameter_order_.back().offset + parameter_order_.back().bytes);
  for (std::size_t i = 0; i < parameter_order_.size(); ++i)
    std::memcpy(&bytes[parameter_order_[i].offset], arguments[i], parameter_order_[i].bytes);
  return bytes;
}

}  // namespace emulation
