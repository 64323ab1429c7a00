// Operators of PyTorch by their names. `src/aten.rs` declares the same functions.
//
// Names and arguments come from model files and from the network. So an operator is refused unless
// its schema, its tags and its name show that it is a function of its tensors alone, and that
// libtorch checks what it is given. No exception leaves this file, as in shim.cpp.

#include "guarded.h"
#include "patches.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

// What an argument takes. `src/aten.rs` has the same numbers.
enum Kind : int32_t {
  kOther = 0,
  kTensor = 1,
  kTensors = 2,
  kInt = 3,
  kFloat = 4,
  kBool = 5,
  kNumber = 6,
  kText = 7,
  kInts = 8,
  kFloats = 9,
  kBools = 10,
  kDtype = 11,
};

const char* const kExpected[] = {
    "nothing",         "a tensor",        "tensors", "a whole number",
    "a number",        "true or false",   "a number", "text",
    "whole numbers",   "numbers",         "a list of true and false", "a dtype",
};

enum Where { kBegins, kContains, kIs };

struct NameRule {
  Where where;
  const char* text;
  const char* reason;
};

const char* const kPrivate = "it is a part of PyTorch's inside";
const char* const kMemory = "it reads memory by place";
const char* const kUnfilled = "its outputs are whatever lies in memory";
const char* const kFormat = "it is for tensors of another format";
const char* const kDevice = "it is for one kind of device";
const char* const kTrusts = "libtorch does not check the numbers it is given";
const char* const kLong = "a number decides how long it takes, or how much memory";
const char* const kNames = "it is for tensors with named dimensions";

// Refusals that no schema and no tag shows.
const NameRule kRules[] = {
    {kBegins, "_", kPrivate},
    {kBegins, "native_", kPrivate},
    {kBegins, "sym_", kPrivate},
    {kBegins, "lift", kPrivate},
    {kContains, "_forward", kPrivate},
    {kContains, "_jvp", kPrivate},
    {kBegins, "conv_depthwise", kPrivate},
    {kBegins, "convolution_over", kPrivate},
    {kBegins, "hash_tensor", kPrivate},
    {kContains, "backward", "autograd makes the backward pass"},
    // Sizes, strides and offsets of a storage.
    {kContains, "strided", kMemory},
    {kContains, "unsafe", kMemory},
    {kContains, "resize", kMemory},
    {kBegins, "set", kMemory},
    {kBegins, "slice_inverse", kMemory},
    {kBegins, "from_", kMemory},
    {kIs, "view.dtype", kMemory},
    {kIs, "view_copy.dtype", kMemory},
    {kBegins, "pin_memory", kMemory},
    // Nothing fills them, so no two runs are alike.
    {kBegins, "empty", kUnfilled},
    {kBegins, "new_empty", kUnfilled},
    // They write to running statistics that their schemas call inputs.
    {kContains, "batch_norm", "it may write to running statistics; use BossMan's own layers"},
    {kBegins, "instance_norm", "it may write to running statistics; use BossMan's own layers"},
    // Formats that do not travel between layers.
    {kContains, "sparse", kFormat},
    {kContains, "nested", kFormat},
    {kContains, "jagged", kFormat},
    {kContains, "padded_tensor", kFormat},
    {kContains, "mkldnn", kFormat},
    {kContains, "quantize", kFormat},
    {kContains, "qparams", kFormat},
    {kIs, "hspmm", kFormat},
    {kIs, "smm", kFormat},
    {kIs, "sspaddmm", kFormat},
    {kBegins, "q_", kFormat},
    {kBegins, "int_repr", kFormat},
    {kBegins, "view_as_complex", kFormat},
    {kBegins, "fbgemm", kDevice},
    {kBegins, "cudnn", kDevice},
    {kBegins, "miopen", kDevice},
    {kBegins, "mps", kDevice},
    {kBegins, "xpu", kDevice},
    {kBegins, "thnn", kDevice},
    {kBegins, "slow_conv", kDevice},
    // Pivots, lengths and offsets that address memory.
    {kContains, "lu_solve", kTrusts},
    {kContains, "ldl_solve", kTrusts},
    {kContains, "lu_unpack", kTrusts},
    {kBegins, "ctc_loss", kTrusts},
    {kBegins, "segment_reduce", kTrusts},
    {kIs, "pdist", kTrusts},
    {kBegins, "embedding_bag", kTrusts},
    {kBegins, "multilabel_margin_loss", kTrusts},
    {kBegins, "fractional_max_pool", kTrusts},
    // The form of one argument, which is `nonzero`.
    {kIs, "where", "the values of its inputs decide the shapes of its outputs"},
    // Recurrences, tables and lists of tensors as long as an argument.
    {kContains, "polynomial", kLong},
    {kContains, "mvlgamma", kLong},
    {kContains, "multigammaln", kLong},
    {kBegins, "combinations", kLong},
    {kBegins, "tensor_split", kLong},
    {kBegins, "hsplit", kLong},
    {kBegins, "vsplit", kLong},
    {kBegins, "dsplit", kLong},
    {kBegins, "rename", kNames},
    {kBegins, "refine_names", kNames},
    {kBegins, "align_", kNames},
};

// libtorch cannot tell the shapes of their outputs before it makes them. They are computed without
// that, because their outputs are no larger than their inputs together, or their product.
const char* const kBounded[] = {
    "abs", "absolute", "addbmm", "angle", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bucketize", "channel_shuffle", "cholesky",
    "cholesky_inverse", "cholesky_solve", "corrcoef", "cosine_embedding_loss", "count_nonzero",
    "cov", "dot", "embedding", "flip", "fliplr", "flipud", "floor_divide", "geqrf", "grid_sampler",
    "grid_sampler_2d", "grid_sampler_3d", "group_norm", "hardswish", "hardtanh",
    "hinge_embedding_loss", "huber_loss", "index_select", "isclose", "isnan", "kthvalue",
    "l1_loss", "linalg_householder_product", "linalg_matrix_exp", "linalg_solve_triangular",
    "log_sigmoid", "logcumsumexp", "logdet", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "matrix_exp", "max", "median", "min", "mode", "multi_margin_loss",
    "nan_to_num", "nanmean", "nanmedian", "nanquantile", "nansum",
    "nll_loss2d", "orgqr", "ormqr", "prelu", "prod", "quantile", "reflection_pad2d",
    "relu", "relu6", "remainder", "roll", "rsub", "searchsorted", "special_logit", "std",
    "std_mean", "take", "trace", "var", "var_mean", "vdot", "where",
};

bool applies(const NameRule& rule, const std::string& base, const std::string& full) {
  switch (rule.where) {
    case kBegins: return base.rfind(rule.text, 0) == 0;
    case kContains: return base.find(rule.text) != std::string::npos;
    case kIs: return full == rule.text;
  }
  return true;
}

bool is_optional(const c10::Argument& argument) {
  return argument.real_type()->kind() == c10::TypeKind::OptionalType;
}

// Fake types would call a device, a layout or a dtype a whole number.
Kind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::TensorType: return kTensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return kInt;
    case c10::TypeKind::FloatType: return kFloat;
    case c10::TypeKind::BoolType: return kBool;
    case c10::TypeKind::NumberType: return kNumber;
    case c10::TypeKind::StringType: return kText;
    case c10::TypeKind::ScalarTypeType: return kDtype;
    case c10::TypeKind::ListType:
      switch (type->expectRef<c10::ListType>().getElementType()->kind()) {
        case c10::TypeKind::TensorType: return kTensors;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType: return kInts;
        case c10::TypeKind::FloatType: return kFloats;
        case c10::TypeKind::BoolType: return kBools;
        default: return kOther;
      }
    default: return kOther;
  }
}

bool is_generator(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return is_generator(type->expectRef<c10::OptionalType>().getElementType());
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_required(const c10::Argument& argument) {
  return !argument.default_value().has_value() && !is_optional(argument);
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  auto is_tensors = [](const c10::Argument& made) {
    if (made.type()->kind() == c10::TypeKind::OptionalType) return false;
    Kind kind = kind_of(made.type());
    return kind == kTensor || kind == kTensors;
  };
  const auto& returns = schema.returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), is_tensors);
}

// Why an operator is refused; empty if it is not.
std::string refusal(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  std::string base = schema.name().substr(schema.name().find("::") + 2);
  const std::string& overload = schema.overload_name();
  std::string full = overload.empty() ? base : base + "." + overload;
  if (schema.is_mutable()) return "it writes to its arguments";
  if (schema.is_vararg() || schema.is_varret()) return kPrivate;
  if (overload.find("out") == overload.size() - 3 && overload.size() >= 3) {
    return "it writes to its arguments";
  }
  for (const NameRule& rule : kRules) {
    if (applies(rule, base, full)) return rule.reason;
  }
  if (overload.find("name") != std::string::npos) return kNames;
  if (!returns_tensors(schema)) return "its outputs are not tensors alone";
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    return "it draws random numbers that are not those of the run's seed";
  }
  if (op.hasTag(at::Tag::dynamic_output_shape)) {
    return "the values of its inputs decide the shapes of its outputs";
  }
  if (op.hasTag(at::Tag::data_dependent_output)) {
    return "the values of its inputs decide what its outputs are";
  }
  bool takes_tensors = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (is_generator(argument.real_type())) {
      return "it draws random numbers that are not those of the run's seed";
    }
    if (argument.name() == "names") return kNames;
    Kind kind = kind_of(argument.real_type());
    if (kind == kOther && is_required(argument)) {
      return "nothing can be given for its argument `" + argument.name() + "`";
    }
    takes_tensors |= kind == kTensors || (kind == kTensor && !is_optional(argument));
  }
  if (!takes_tensors) return "it takes no tensor";
  return "";
}

at::Tensor on_meta(const at::Tensor& tensor) {
  auto options = tensor.options().device(c10::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

}  // namespace

extern "C" {

struct bm_operator {
  c10::OperatorHandle handle;
  std::vector<int32_t> kinds;
  bool bounded;
  // Tells the shapes of the outputs, if libtorch cannot.
  OutlineFunction outline;
};

// How a value is given. `src/aten.rs` has the same numbers.
enum bm_tag : int32_t {
  kGivenInt = 0,
  kGivenFloat = 1,
  kGivenBool = 2,
  kGivenText = 3,
  kGivenInts = 4,
  kGivenFloats = 5,
  kGivenBools = 6,
  kGivenTensor = 7,
  kGivenTensors = 8,
  kGivenDtype = 9,
};

// One argument's value. `data` points to `count` elements of the type that the tag says: int64_t
// for whole numbers, truth values and a dtype, double, char, or at::Tensor*.
struct bm_value {
  size_t argument;
  int32_t tag;
  size_t count;
  const void* data;
};

}  // extern "C"

namespace {

// Arguments that kernels take as they are: a mode that they do not know leaves the output as it
// lies in memory, and a scale that does not fit the size makes places outside of it.
void check_trusted(const c10::Argument& argument, const bm_value& value) {
  const std::string& name = argument.name();
  auto refuse = [&](const char* expected) {
    TORCH_CHECK(false, "argument `", name, "`: expected ", expected);
  };
  bool is_int = value.tag == kGivenInt;
  int64_t number = is_int ? *static_cast<const int64_t*>(value.data) : 0;
  if (name == "interpolation_mode" && is_int && (number < 0 || number > 1)) refuse("0 or 1");
  if (name == "padding_mode" && is_int && (number < 0 || number > 2)) refuse("0, 1 or 2");
  if (name.rfind("scales", 0) == 0) refuse("nothing; give the size of the output alone");
}

// Larger numbers wrap around where kernels add or multiply sizes. PyTorch writes the largest one
// for the end of a slice.
constexpr int64_t kLargest = int64_t{1} << 40;

void check_size(const c10::Argument& argument, int64_t number, bool may_be_end) {
  bool fits = number >= -kLargest && number <= kLargest;
  bool is_end = may_be_end && number == std::numeric_limits<int64_t>::max();
  TORCH_CHECK(fits || is_end, "argument `", argument.name(), "`: ", number, " is too large");
}

c10::IValue converted(const bm_value& value, const c10::Argument& argument, int32_t kind,
                      bool meta) {
  auto ints = [&] { return static_cast<const int64_t*>(value.data); };
  auto floats = [&] { return static_cast<const double*>(value.data); };
  auto tensor = [&](size_t i) {
    const at::Tensor& given = *static_cast<const at::Tensor* const*>(value.data)[i];
    return meta ? on_meta(given) : given;
  };
  bool one_int = value.tag == kGivenInt, one_float = value.tag == kGivenFloat;
  bool none = value.count == 0;
  int32_t places = argument.N().value_or(0);
  switch (kind) {
    case kTensor:
      if (value.tag == kGivenTensor) return tensor(0);
      break;
    case kTensors:
      if (value.tag == kGivenTensors) {
        c10::List<at::Tensor> list;
        for (size_t i = 0; i < value.count; ++i) list.push_back(tensor(i));
        return list;
      }
      break;
    case kInt:
      if (one_int) {
        check_size(argument, ints()[0], true);
        return ints()[0];
      }
      break;
    case kFloat:
      if (one_int) return static_cast<double>(ints()[0]);
      if (one_float) return floats()[0];
      break;
    case kBool:
      if (value.tag == kGivenBool) {
        // A gradient in another format.
        bool sparse = argument.name().rfind("sparse", 0) == 0 && ints()[0] != 0;
        TORCH_CHECK(!sparse, "argument `", argument.name(), "`: ", kFormat);
        return ints()[0] != 0;
      }
      break;
    case kNumber:
      if (one_int) return ints()[0];
      if (one_float) return floats()[0];
      if (value.tag == kGivenBool) return ints()[0] != 0;
      break;
    case kText:
      if (value.tag == kGivenText) {
        return std::string(static_cast<const char*>(value.data), value.count);
      }
      break;
    case kInts:
      if (one_int || value.tag == kGivenInts) {
        c10::List<int64_t> list;
        // `int[2]` takes one number for both. Some kernels read as many as the schema says.
        int32_t times = value.count == 1 ? std::clamp(places, 1, 8) : 1;
        for (size_t i = 0; i < value.count; ++i) check_size(argument, ints()[i], false);
        for (int32_t time = 0; time < times; ++time) {
          for (size_t i = 0; i < value.count; ++i) list.push_back(ints()[i]);
        }
        TORCH_CHECK(places <= 1 || list.size() == static_cast<size_t>(places), "argument `",
                    argument.name(), "`: expected ", places, " whole numbers, found ",
                    value.count);
        return list;
      }
      break;
    case kFloats:
      if (one_int || one_float || value.tag == kGivenInts || value.tag == kGivenFloats) {
        bool whole = one_int || value.tag == kGivenInts;
        c10::List<double> list;
        for (size_t i = 0; i < value.count; ++i) {
          list.push_back(whole ? static_cast<double>(ints()[i]) : floats()[i]);
        }
        return list;
      }
      break;
    case kBools:
      if (value.tag == kGivenBools || (value.tag == kGivenInts && none)) {
        TORCH_CHECK(places == 0 || value.count == static_cast<size_t>(places), "argument `",
                    argument.name(), "`: expected ", places, " of true and false, found ",
                    value.count);
        c10::List<bool> list;
        for (size_t i = 0; i < value.count; ++i) list.push_back(ints()[i] != 0);
        return list;
      }
      break;
    case kDtype:
      if (value.tag == kGivenDtype) return ints()[0];
      break;
    case kOther: break;
  }
  TORCH_CHECK(false, "argument `", argument.name(), "`: expected ", kExpected[kind]);
}

// A division of the smallest whole number by -1, rounded towards zero, ends the process.
void check_rounding(const std::vector<c10::Argument>& arguments,
                    const std::vector<std::optional<c10::IValue>>& given) {
  bool towards_zero = false, whole = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!given[i]) continue;
    towards_zero |= arguments[i].name() == "rounding_mode" && given[i]->isString() &&
                    given[i]->toStringRef() != "floor";
    whole |= given[i]->isTensor() && !given[i]->toTensor().is_floating_point();
  }
  TORCH_CHECK(!(towards_zero && whole),
              "argument `rounding_mode`: expected floor, for tensors of whole numbers");
}

void call(const bm_operator& op, const bm_value* values, size_t count, bool meta,
          void (*take)(void*, at::Tensor*), void* taker) {
  const auto& arguments = op.handle.schema().arguments();
  std::vector<std::optional<c10::IValue>> given(arguments.size());
  std::vector<std::pair<at::Tensor, uint32_t>> before;
  for (size_t i = 0; i < count; ++i) {
    const bm_value& value = values[i];
    TORCH_CHECK(value.argument < arguments.size(), "it has ", arguments.size(), " arguments");
    check_trusted(arguments[value.argument], value);
    given[value.argument] =
        converted(value, arguments[value.argument], op.kinds[value.argument], meta);
    if (!meta && (value.tag == kGivenTensor || value.tag == kGivenTensors)) {
      for (size_t j = 0; j < value.count; ++j) {
        const at::Tensor& tensor = *static_cast<const at::Tensor* const*>(value.data)[j];
        before.emplace_back(tensor, tensor.is_inference() ? 0 : tensor._version());
      }
    }
  }
  check_rounding(arguments, given);
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (given[i]) {
      stack.push_back(std::move(*given[i]));
    } else if (arguments[i].default_value()) {
      stack.push_back(*arguments[i].default_value());
    } else {
      TORCH_CHECK(is_optional(arguments[i]), "missing argument `", arguments[i].name(),
                  "`: expected ", kExpected[op.kinds[i]]);
      stack.emplace_back();
    }
  }
  if (meta && op.outline) {
    stack = {op.outline(stack)};
  } else {
    op.handle.callBoxed(&stack);
  }
  for (const auto& [tensor, version] : before) {
    TORCH_CHECK(tensor.is_inference() || tensor._version() == version, "it writes to its inputs");
  }
  auto hand_over = [&](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.defined(), "one of its outputs has no value");
    TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
                "one of its outputs is no plain tensor");
    take(taker, new at::Tensor(tensor));
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      hand_over(value.toTensor());
    } else {
      TORCH_CHECK(value.isTensorList(), "expected tensors as outputs, got a ", value.tagKind());
      for (const at::Tensor& tensor : value.toTensorVector()) hand_over(tensor);
    }
  }
}

}  // namespace

extern "C" {

// `name` is without `aten::`; `overload` may be empty. The message says that there is no such
// operator, or why it is refused.
char* bm_operator_find(const char* name, const char* overload, bm_operator** out) {
  return guarded([&] {
    std::string qualified = std::string("aten::") + name;
    auto& dispatcher = c10::Dispatcher::singleton();
    auto found = dispatcher.findSchema({qualified, overload});
    if (!found) {
      std::string others;
      for (const auto& known : dispatcher.getAllOpNames()) {
        if (known.name != qualified || known.overload_name.find("out") != std::string::npos) {
          continue;
        }
        others += (others.empty() ? "" : ", ") + std::string(name);
        if (!known.overload_name.empty()) others += "." + known.overload_name;
      }
      TORCH_CHECK(others.empty(), "PyTorch has no operator of this name, but ", others);
      TORCH_CHECK(false, "PyTorch has no operator of this name");
    }
    std::string reason = refusal(*found);
    TORCH_CHECK(reason.empty(), "not allowed: ", reason);
    auto is_it = [&](const char* known) { return std::strcmp(known, name) == 0; };
    bool bounded = std::any_of(std::begin(kBounded), std::end(kBounded), is_it);
    auto outline = outline_function(name);
    auto op = std::make_unique<bm_operator>(bm_operator{*found, {}, bounded, outline});
    for (const c10::Argument& argument : found->schema().arguments()) {
      op->kinds.push_back(kind_of(argument.real_type()));
    }
    *out = op.release();
  });
}

void bm_operator_free(bm_operator* op) noexcept { delete op; }

size_t bm_operator_arguments(const bm_operator* op) noexcept { return op->kinds.size(); }

// The name lives as long as the operator.
const char* bm_operator_argument(const bm_operator* op, size_t index, int32_t* kind,
                                 bool* required) noexcept {
  const c10::Argument& argument = op->handle.schema().arguments()[index];
  *kind = op->kinds[index];
  *required = is_required(argument);
  return argument.name().c_str();
}

// Each output is handed to `take` as a new at::Tensor.
char* bm_operator_call(const bm_operator* op, const bm_value* values, size_t count,
                       void (*take)(void*, at::Tensor*), void* taker) {
  return guarded([&] { call(*op, values, count, false, take, taker); });
}

// The same for tensors without memory, of which only sizes and dtypes are known. `unknown` is set
// if libtorch cannot do so, and need not.
char* bm_operator_outline(const bm_operator* op, const bm_value* values, size_t count,
                          void (*take)(void*, at::Tensor*), void* taker, bool* unknown) {
  return guarded([&] {
    c10::AutoGradMode no_graph(false);
    *unknown = false;
    try {
      call(*op, values, count, true, take, taker);
    } catch (const c10::NotImplementedError&) {
      TORCH_CHECK(op->bounded,
                  "not allowed: libtorch cannot tell the shapes of its outputs before it makes "
                  "them");
      *unknown = true;
    }
  });
}

}  // extern "C"
