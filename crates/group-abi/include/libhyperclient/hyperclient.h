/*
 * Group operations from C++ (C++14): a client of a chain of replicas (HyperLoop). Link with -lhyperclient.
 *
 * All of it is inline, over the C functions of hyperclient_compat.h: the library has no C++ in it, so any compiler and
 * any standard library will do. docs/group.md of softrnic says what the operations do.
 */
#ifndef _LIBHYPERCLIENT_HYPERCLIENT_H
#define _LIBHYPERCLIENT_HYPERCLIENT_H 1

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "hyperclient_compat.h"

namespace rdma {

enum class OperationType {
	GroupWrite = OPERATION_TYPE_GWRITE,
	GroupMemoryCopy = OPERATION_TYPE_GMEMCPY,
	GroupFlush = OPERATION_TYPE_GFLUSH,
	GroupCompareAndSwap = OPERATION_TYPE_GCAS,
};

/* Bytes of the client's buffer go to the same offset of every replica's region. */
struct GroupWrite {
	uint64_t buffer_address; /* the client's buffer, as its constructor was told */
	uint64_t offset;
	uint64_t size;
};

using GroupMemoryCopy = compat_hyperloop_gmemcpy;
using GroupCompareAndSwap = compat_hyperloop_gcas;
using GroupFlush = compat_hyperloop_gflush;

struct Operation {
	OperationType type;
	union {
		GroupWrite gWrite;
		GroupMemoryCopy gMemcpy;
		GroupCompareAndSwap gCas;
		GroupFlush gFlush;
	} op;
};

} // namespace rdma

namespace hyperclient {

/*
 * A client. It throws std::system_error, whose code is the errno of the C function and whose text says why.
 */
class Hyperclient {
public:
	Hyperclient(const std::string &device_name, const int device_port, const std::string &server_ip_port,
		    const uintptr_t buffer_address, const size_t buffer_size)
		: client_(compat_hyperclient_connect(device_name.c_str(), device_port, server_ip_port.c_str(),
						     reinterpret_cast<const void *>(buffer_address), buffer_size)),
		  buffer_(buffer_address)
	{
		if (!client_)
			fail();
	}

	Hyperclient(Hyperclient &&other) noexcept
		: client_(std::exchange(other.client_, nullptr)), buffer_(other.buffer_)
	{
	}

	Hyperclient &operator=(Hyperclient &&other) noexcept
	{
		std::swap(client_, other.client_);
		std::swap(buffer_, other.buffer_);
		return *this;
	}

	Hyperclient(const Hyperclient &) = delete;
	Hyperclient &operator=(const Hyperclient &) = delete;

	~Hyperclient()
	{
		if (client_)
			compat_hyperclient_destroy(client_);
	}

	/* Have all replicas print a part of their regions; false: an error, which errno has. */
	bool sendPrintBuffer(const uint64_t offset, const size_t length)
	{
		return compat_hyperclient_send_print_buffer(client_, offset, length) == 0;
	}

	/* Do operations, at most op_window_size at a time, and return how many microseconds it took. */
	unsigned long doOperations(const std::vector<rdma::Operation> &ops, unsigned int op_window_size = 1)
	{
		std::vector<compat_hyperloop_operation> list;
		list.reserve(ops.size());
		for (const auto &op : ops)
			list.push_back(translate(op));
		const auto count = static_cast<unsigned int>(list.size());
		const auto took = compat_hyperclient_do_operations(client_, list.data(), count, op_window_size);
		if (took == COMPAT_HYPERCLIENT_FAILED)
			fail();
		return took;
	}

	/* What the replicas had before gCAS number `index` of the last doOperations(). */
	std::vector<uint64_t> result(const unsigned int index)
	{
		std::vector<uint64_t> values(COMPAT_HYPERCLIENT_MAX_REPLICAS);
		const int count = compat_hyperclient_result(client_, index, values.data());
		if (count < 0)
			fail();
		values.resize(static_cast<size_t>(count));
		return values;
	}

	/* Make the gCAS that takes `op` back where it swapped; false if it swapped nowhere. */
	bool makeUndo(const rdma::Operation &op, const std::vector<uint64_t> &values, rdma::Operation &undo)
	{
		std::vector<uint64_t> whole(values);
		whole.resize(COMPAT_HYPERCLIENT_MAX_REPLICAS);
		compat_hyperloop_operation made{};
		const auto from = translate(op);
		const int some = compat_hyperclient_undo(client_, &from, whole.data(), &made);
		if (some < 0)
			fail();
		if (some == 0)
			return false;
		undo.type = rdma::OperationType::GroupCompareAndSwap;
		undo.op.gCas = made.op.gCas;
		return true;
	}

	/* Wait for completions by sleeping until an event, or by polling, as at the beginning. */
	void useNotify(const bool use)
	{
		if (compat_hyperclient_use_notify(client_, use) != 0)
			fail();
	}

	unsigned int replicas() const
	{
		const int count = compat_hyperclient_replicas(client_);
		if (count < 0)
			fail();
		return static_cast<unsigned int>(count);
	}

	uint64_t regionSize() const
	{
		const int64_t size = compat_hyperclient_region_size(client_);
		if (size < 0)
			fail();
		return static_cast<uint64_t>(size);
	}

private:
	[[noreturn]] static void fail()
	{
		throw std::system_error(errno, std::generic_category(), compat_hyperclient_error());
	}

	compat_hyperloop_operation translate(const rdma::Operation &op) const
	{
		compat_hyperloop_operation made{};
		made.type = static_cast<compat_hyperloop_operation_type>(op.type);
		switch (op.type) {
		case rdma::OperationType::GroupWrite:
			if (op.op.gWrite.buffer_address != buffer_)
				throw std::system_error(EINVAL, std::generic_category(),
							"a gWRITE of another buffer than the client's");
			made.op.gWrite = {op.op.gWrite.offset, op.op.gWrite.size};
			break;
		case rdma::OperationType::GroupMemoryCopy:
			made.op.gMemcpy = op.op.gMemcpy;
			break;
		case rdma::OperationType::GroupCompareAndSwap:
			made.op.gCas = op.op.gCas;
			break;
		case rdma::OperationType::GroupFlush:
			made.op.gFlush = op.op.gFlush;
			break;
		}
		return made;
	}

	compat_hyperclient *client_;
	uintptr_t buffer_;
};

} // namespace hyperclient

#endif
