// TensorFlow's C interface, as far as it is used here: for kernels, operations and their shapes.
// The declarations are our own, so nothing of TensorFlow is needed to compile; its functions are
// looked up in the library that the process has loaded, and one wheel serves all versions that have
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "adapters/error_code.h"

namespace khorovod::tensorflow {

// Types that are only pointed to.
struct Status;
struct Tensor;
struct OpDefinitionBuilder;
struct ShapeInferenceContext;
struct ShapeHandle;
struct KernelBuilder;
struct OpKernelConstruction;
struct OpKernelContext;
struct AsyncOpKernelDoneCallback;

// TF_DataType, a C enum: those that are used. Those of TF_Code are in error_code.h.
using DataType = int;
inline constexpr DataType kFloat = 1, kDouble = 2, kInt32 = 3, kUint8 = 4, kInt16 = 5, kInt8 = 6,
                          kInt64 = 9, kBool = 10, kBfloat16 = 14, kUint16 = 17, kHalf = 19;
using namespace error_codes;

using CreateKernel = void*(OpKernelConstruction*);
using DeleteKernel = void(void*);
using Compute = void(void*, OpKernelContext*);
using ComputeAsync = void(void*, OpKernelContext*, AsyncOpKernelDoneCallback*);
using InferShape = void(ShapeInferenceContext*, Status*);

// What is looked up: result, name without TF_, arguments.
#define KHOROVOD_TENSORFLOW_FUNCTIONS(F)                                                        \
  F(Status*, NewStatus, ())                                                                     \
  F(void, DeleteStatus, (Status*))                                                              \
  F(void, SetStatus, (Status*, ErrorCode, const char*))                                         \
  F(ErrorCode, GetCode, (const Status*))                                                        \
  F(const char*, Message, (const Status*))                                                      \
  F(OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                \
  F(void, RegisterOpDefinition, (OpDefinitionBuilder*, Status*))                                \
  F(void, OpDefinitionBuilderAddAttr, (OpDefinitionBuilder*, const char*))                      \
  F(void, OpDefinitionBuilderAddInput, (OpDefinitionBuilder*, const char*))                     \
  F(void, OpDefinitionBuilderAddOutput, (OpDefinitionBuilder*, const char*))                    \
  F(void, OpDefinitionBuilderSetIsStateful, (OpDefinitionBuilder*, bool))                       \
  F(void, OpDefinitionBuilderSetShapeInferenceFunction, (OpDefinitionBuilder*, InferShape*))    \
  F(ShapeHandle*, NewShapeHandle, ())                                                           \
  F(void, DeleteShapeHandle, (ShapeHandle*))                                                    \
  F(std::int64_t, ShapeInferenceContextNumInputs, (ShapeInferenceContext*))                     \
  F(void, ShapeInferenceContextGetInput, (ShapeInferenceContext*, int, ShapeHandle*, Status*))  \
  F(void, ShapeInferenceContextSetOutput, (ShapeInferenceContext*, int, ShapeHandle*, Status*)) \
  F(int, ShapeInferenceContextRankKnown, (ShapeInferenceContext*, ShapeHandle*))                \
  F(ShapeHandle*, ShapeInferenceContextScalar, (ShapeInferenceContext*))                        \
  F(ShapeHandle*, ShapeInferenceContextVectorFromSize, (ShapeInferenceContext*, std::size_t))   \
  F(void, ShapeInferenceContextSubshape,                                                        \
    (ShapeInferenceContext*, ShapeHandle*, std::int64_t, std::int64_t, ShapeHandle*, Status*))  \
  F(void, ShapeInferenceContextConcatenateShapes,                                               \
    (ShapeInferenceContext*, ShapeHandle*, ShapeHandle*, ShapeHandle*, Status*))                \
  F(void, ShapeInferenceContextSetUnknownShape, (ShapeInferenceContext*, Status*))              \
  F(KernelBuilder*, NewKernelBuilder,                                                           \
    (const char*, const char*, CreateKernel*, Compute*, DeleteKernel*))                         \
  F(KernelBuilder*, NewAsyncKernelBuilder,                                                      \
    (const char*, const char*, CreateKernel*, ComputeAsync*, DeleteKernel*))                    \
  F(void, RunAsyncOpKernelDoneCallback, (AsyncOpKernelDoneCallback*))                           \
  F(void, KernelBuilder_TypeConstraint, (KernelBuilder*, const char*, DataType, Status*))       \
  F(void, RegisterKernelBuilder, (const char*, KernelBuilder*, Status*))                        \
  F(void, OpKernelConstruction_GetAttrSize,                                                     \
    (OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*, Status*))                \
  F(void, OpKernelConstruction_GetAttrString,                                                   \
    (OpKernelConstruction*, const char*, char*, std::size_t, Status*))                          \
  F(void, OpKernelConstruction_GetAttrInt64,                                                    \
    (OpKernelConstruction*, const char*, std::int64_t*, Status*))                               \
  F(void, OpKernelConstruction_Failure, (OpKernelConstruction*, Status*))                       \
  F(void, OpKernelContext_Failure, (OpKernelContext*, Status*))                                 \
  F(int, NumInputs, (OpKernelContext*))                                                         \
  F(void, GetInput, (OpKernelContext*, int, Tensor**, Status*))                                 \
  F(Tensor*, AllocateOutput,                                                                    \
    (OpKernelContext*, int, DataType, const std::int64_t*, int, std::size_t, Status*))          \
  F(Tensor*, ForwardInputOrAllocateOutput,                                                      \
    (OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, Status*))          \
  F(DataType, TensorType, (const Tensor*))                                                      \
  F(int, NumDims, (const Tensor*))                                                              \
  F(std::int64_t, Dim, (const Tensor*, int))                                                    \
  F(void*, TensorData, (const Tensor*))                                                         \
  F(void, DeleteTensor, (Tensor*))

struct Api {
#define KHOROVOD_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  KHOROVOD_TENSORFLOW_FUNCTIONS(KHOROVOD_DECLARE)
#undef KHOROVOD_DECLARE
  // In which iteration of a loop an operation runs; null where TensorFlow does not tell.
  std::int64_t (*GetIterId)(OpKernelContext*) = nullptr;
};

// Looks all functions up. Returns what is missing, "" if nothing is.
std::string find_api(Api& api);

// The functions that kernels use. TensorFlow gives kernels and shape functions no argument of ours.
const Api& api();
void set_api(const Api& api);

}  // namespace khorovod::tensorflow
