#include "adapters/tensorflow_ops.h"

#include <initializer_list>
#include <vector>

#include "adapters/tensorflow_handles.h"

namespace khorovod::tensorflow {

namespace {

// ---------------------------------------------------------------------------------------------------
// Shapes. Graphs are built without a world: nothing here depends on the number of ranks.

ShapePtr input_shape(ShapeInferenceContext* context, int i, Status* status) {
  ShapePtr shape(api().NewShapeHandle());
  api().ShapeInferenceContextGetInput(context, i, shape.get(), status);
  return shape;
}

// Output i is like input i.
void same_shapes(ShapeInferenceContext* context, Status* status) {
  const auto inputs = static_cast<int>(api().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && api().GetCode(status) == kOk; ++i) {
    const ShapePtr shape = input_shape(context, i, status);
    api().ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

// As an input, but with any number of rows.
void put_rows_unknown(ShapeInferenceContext* context, int i, Status* status) {
  const ShapePtr shape = input_shape(context, i, status);
  if (api().GetCode(status) != kOk) return;
  if (api().ShapeInferenceContextRankKnown(context, shape.get()) == 0) {
    api().ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    return;
  }
  constexpr auto kUnknownSize = static_cast<std::size_t>(-1);
  constexpr std::int64_t kEnd = INT64_MAX;
  const ShapePtr rows(api().ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  const ShapePtr rest(api().NewShapeHandle());
  const ShapePtr all(api().NewShapeHandle());
  api().ShapeInferenceContextSubshape(context, shape.get(), 1, kEnd, rest.get(), status);
  if (api().GetCode(status) != kOk) return;
  api().ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), all.get(), status);
  if (api().GetCode(status) != kOk) return;
  api().ShapeInferenceContextSetOutput(context, i, all.get(), status);
}

void other_rows(ShapeInferenceContext* context, Status* status) {
  const auto inputs = static_cast<int>(api().ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && api().GetCode(status) == kOk; ++i) {
    put_rows_unknown(context, i, status);
  }
}

// The rows that came, and how many from whom.
void rows_and_splits(ShapeInferenceContext* context, Status* status) {
  put_rows_unknown(context, 0, status);
  if (api().GetCode(status) != kOk) return;
  const ShapePtr splits(
      api().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  api().ShapeInferenceContextSetOutput(context, 1, splits.get(), status);
}

void scalar(ShapeInferenceContext* context, Status* status) {
  const ShapePtr shape(api().ShapeInferenceContextScalar(context));
  api().ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

// ---------------------------------------------------------------------------------------------------
// Definitions

using Texts = std::vector<const char*>;

struct Definition {
  const char* name;
  Texts attributes;
  Texts inputs;
  Texts outputs;
  InferShape* shapes;
};

Texts operator+(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// `tensor_name` is what ranks match by; "" stands for the number of the call. `waits` is of eager
// calls: TensorFlow lets nothing else run meanwhile, so the caller may as well do the work.
const Texts kCall = {"tensor_name: string = ''", "process_set_id: int = 0", "waits: int = 0"};
#define KHOROVOD_TYPES \
  "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float32, float64, bool}"
const Texts kOne = {"T: " KHOROVOD_TYPES};
const Texts kGroup = {"T: list(" KHOROVOD_TYPES ") >= 1"};
// Factors are texts because attributes that are numbers have single precision.
const Texts kReduction = {"reduce_op: int = 1", "prescale_factor: string = '1.0'",
                          "postscale_factor: string = '1.0'", "compression: int = 0"};
const Texts kTensor = {"tensor: T"};
const Texts kTensors = {"tensors: T"};
const Texts kResult = {"output: T"};
const Texts kResults = {"outputs: T"};
const Texts kNumber = {"output: int32"};
const Texts kSet = {"process_set_id: int = 0"};

const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all = {
      {"HorovodAllreduce", kOne + kReduction + kCall, kTensor, kResult, same_shapes},
      {"HorovodGroupedAllreduce", kGroup + kReduction + kCall, kTensors, kResults, same_shapes},
      {"HorovodAllgather", kOne + kCall, kTensor, kResult, other_rows},
      {"HorovodGroupedAllgather", kGroup + kCall, kTensors, kResults, other_rows},
      {"HorovodBroadcast", kOne + kCall + Texts{"root_rank: int"}, kTensor, kResult, same_shapes},
      {"HorovodAlltoall", kOne + kCall + Texts{"has_splits: int = 1"},
       kTensor + Texts{"splits: int32"}, kResult + Texts{"received_splits: int32"},
       rows_and_splits},
      {"HorovodReducescatter", kOne + kReduction + kCall, kTensor, kResult, other_rows},
      {"HorovodGroupedReducescatter", kGroup + kReduction + kCall, kTensors, kResults, other_rows},
      {"HorovodJoin", {"waits: int = 0"}, {}, kNumber, scalar},
      {"HorovodSize", kSet, {}, kNumber, scalar},
      {"HorovodRank", kSet, {}, kNumber, scalar},
      {"HorovodLocalSize", {}, {}, kNumber, scalar},
      {"HorovodLocalRank", {}, {}, kNumber, scalar},
      {"HorovodProcessSetIncluded", kSet, {}, kNumber, scalar},
  };
  return all;
}

}  // namespace

std::string define_operations() {
  for (const Definition& definition : definitions()) {
    OpDefinitionBuilder* builder = api().NewOpDefinitionBuilder(definition.name);
    for (const char* text : definition.attributes) api().OpDefinitionBuilderAddAttr(builder, text);
    for (const char* text : definition.inputs) api().OpDefinitionBuilderAddInput(builder, text);
    for (const char* text : definition.outputs) api().OpDefinitionBuilderAddOutput(builder, text);
    // Not to be folded, merged or dropped, though its inputs may be constants.
    api().OpDefinitionBuilderSetIsStateful(builder, true);
    api().OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
    const StatusPtr status = new_status();
    api().RegisterOpDefinition(builder, status.get());  // takes the builder
    if (!is_ok(status)) {
      return std::string(definition.name) + ": " + api().Message(status.get());
    }
  }
  return "";
}

}  // namespace khorovod::tensorflow
