// The four operations in C++, as listing 3.23 of HyperLoop's report has them. There, the gWRITE begins 0x10 bytes into
// a buffer and is as long as it: such an operation is refused, and here it begins at 0.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "libhyperclient/hyperclient.h"

#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition)) {                                                     \
			std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			std::exit(1);                                                   \
		}                                                                       \
	} while (0)

template <typename Body> static int refused(Body body)
{
	try {
		body();
	} catch (const std::system_error &error) {
		CHECK(std::strlen(error.what()) > 0);
		return error.code().value();
	}
	return 0;
}

int main(int, char **argv)
{
	constexpr size_t buffer_size = 0x30;
	std::unique_ptr<char[]> owner(new char[buffer_size]());
	auto buffer = owner.get();
	std::strcpy(buffer, "Hello World, hello replicas");
	const auto address = reinterpret_cast<uint64_t>(buffer);

	rdma::Operation op_gwrite, op_gmemcpy, op_gcas, op_gflush;
	op_gwrite.type = rdma::OperationType::GroupWrite;
	op_gwrite.op.gWrite = {address, 0x0, buffer_size};

	op_gmemcpy.type = rdma::OperationType::GroupMemoryCopy;
	op_gmemcpy.op.gMemcpy = {0x0, 0x50, 0x30};

	// "Hello Wo" becomes "hihi" on the replicas 0 and 2.
	op_gcas.type = rdma::OperationType::GroupCompareAndSwap;
	op_gcas.op.gCas = {0x0, 0x6f57206f6c6c6548ULL, 0x69686968, {1, 0, 1, 0}};

	op_gflush.type = rdma::OperationType::GroupFlush;
	op_gflush.op.gFlush = {0x0, 0x80};

	std::vector<rdma::Operation> ops{op_gwrite, op_gmemcpy, op_gcas, op_gflush};
	hyperclient::Hyperclient first("", 1, argv[1], address, buffer_size);
	hyperclient::Hyperclient client(std::move(first));
	CHECK(client.replicas() == 3 && client.regionSize() == 65536);
	client.doOperations(ops);

	const auto values = client.result(2);
	CHECK((values == std::vector<uint64_t>{0x6f57206f6c6c6548ULL, 0, 0x6f57206f6c6c6548ULL}));
	rdma::Operation undo;
	CHECK(client.makeUndo(op_gcas, values, undo));
	client.useNotify(true);
	client.doOperations({undo}, 2000);
	CHECK((client.result(0) == std::vector<uint64_t>{0x69686968, 0, 0x69686968}));
	CHECK(!client.makeUndo(op_gcas, {1, 2, 3}, undo));
	CHECK(client.sendPrintBuffer(0x50, 0x10));
	CHECK(!client.sendPrintBuffer(65536, 1) && errno == EINVAL);

	// What the report's listing has: 0x20 bytes of a buffer of 0x20, from 0x10 on.
	op_gwrite.op.gWrite = {address, 0x10, buffer_size};
	CHECK(refused([&] { client.doOperations({op_gwrite}); }) == EINVAL);
	op_gwrite.op.gWrite = {address + 1, 0x0, 1};
	CHECK(refused([&] { client.doOperations({op_gwrite}); }) == EINVAL);
	CHECK(refused([&] { client.doOperations(ops, 0); }) == EINVAL);
	CHECK(refused([&] { client.result(0); }) == EINVAL);
	CHECK(refused([&] { hyperclient::Hyperclient none("none", 1, argv[1], address, buffer_size); }) == ENODEV);
	return 0;
}
