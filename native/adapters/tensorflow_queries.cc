// Kernels that ask for ranks and sizes.
#include <cstring>
#include <memory>

#include "adapters/queries.h"
#include "adapters/tensorflow_handles.h"
#include "adapters/tensorflow_kernels.h"

namespace khorovod::tensorflow {

namespace {

struct Query {
  std::int64_t set = 0;
};

template <bool kHasSet>
void* create(OpKernelConstruction* construction) {
  auto query = std::make_unique<Query>();
  if constexpr (kHasSet) {
    const StatusPtr status = new_status();
    api().OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &query->set,
                                            status.get());
    if (!is_ok(status)) api().OpKernelConstruction_Failure(construction, status.get());
  }
  return query.release();
}

void destroy(void* query) { delete static_cast<Query*>(query); }

template <Answer* kAnswer>
void compute(void* query, OpKernelContext* context) {
  std::int32_t answer = 0;
  if (const khorovod::Status status = kAnswer(static_cast<const Query*>(query)->set, answer);
      !status.ok()) {
    return fail(context, status);
  }
  const StatusPtr status = new_status();
  const TensorPtr output(
      api().AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof answer, status.get()));
  if (!is_ok(status)) return fail(context, taken_from(status));
  std::memcpy(api().TensorData(output.get()), &answer, sizeof answer);
}

struct Kernel {
  const char* operation;
  CreateKernel* create;
  Compute* compute;
};

constexpr Kernel kKernels[] = {
    {"HorovodSize", create<true>, compute<size_of_set>},
    {"HorovodRank", create<true>, compute<rank_in_set>},
    {"HorovodLocalSize", create<false>, compute<local_size>},
    {"HorovodLocalRank", create<false>, compute<local_rank>},
    {"HorovodProcessSetIncluded", create<true>, compute<included_in_set>},
};

}  // namespace

std::string add_query_kernels() {
  const StatusPtr status = new_status();
  for (const Kernel& kernel : kKernels) {
    KernelBuilder* builder =
        api().NewKernelBuilder(kernel.operation, "CPU", kernel.create, kernel.compute, destroy);
    api().RegisterKernelBuilder(kernel.operation, builder, status.get());
    if (!is_ok(status)) return std::string(kernel.operation) + ": " + api().Message(status.get());
  }
  return "";
}

}  // namespace khorovod::tensorflow
