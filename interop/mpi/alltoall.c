/*
 * Four ranks, or any number: point to point, all-to-all of every size from 1 byte to 4 MiB, and reductions, each with its
 * data checked. Exit status 0 only if every byte was right on every rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static unsigned char expected(int from, int to, size_t at)
{
	return (unsigned char)(from * 31 + to * 17 + at * 7 + (at >> 8));
}

static void wrong(const char *what, size_t at)
{
	fprintf(stderr, "rank %d: %s is wrong at %zu\n", rank, what, at);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void all_to_all(size_t n)
{
	unsigned char *out = malloc(n * size), *in = calloc(size, n);
	for (int to = 0; to < size; to++)
		for (size_t i = 0; i < n; i++)
			out[to * n + i] = expected(rank, to, i);
	MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < size; from++)
		for (size_t i = 0; i < n; i++)
			if (in[from * n + i] != expected(from, rank, i))
				wrong("all-to-all", from * n + i);
	free(out);
	free(in);
}

/* Around the ring, many messages at once. */
static void ring(size_t n, int many)
{
	unsigned char *out = malloc(n), *in = calloc(many, n);
	MPI_Request *requests = malloc(2 * many * sizeof(*requests));
	int next = (rank + 1) % size, before = (rank + size - 1) % size;
	for (size_t i = 0; i < n; i++)
		out[i] = expected(rank, next, i);
	for (int k = 0; k < many; k++) {
		MPI_Irecv(in + k * n, n, MPI_BYTE, before, k, MPI_COMM_WORLD, &requests[k]);
		MPI_Isend(out, n, MPI_BYTE, next, k, MPI_COMM_WORLD, &requests[many + k]);
	}
	MPI_Waitall(2 * many, requests, MPI_STATUSES_IGNORE);
	for (int k = 0; k < many; k++)
		for (size_t i = 0; i < n; i++)
			if (in[k * n + i] != expected(before, rank, i))
				wrong("ring", i);
	free(out);
	free(in);
	free(requests);
}

/* Writing into each other's memory. */
static void one_sided(size_t n)
{
	unsigned char *memory, *out = malloc(n);
	MPI_Win win;
	MPI_Win_allocate(n * size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	MPI_Win_fence(0, win);
	for (int to = 0; to < size; to++) {
		for (size_t i = 0; i < n; i++)
			out[i] = expected(rank, to, i);
		MPI_Put(out, n, MPI_BYTE, to, rank * n, n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
	}
	for (int from = 0; from < size; from++)
		for (size_t i = 0; i < n; i++)
			if (memory[from * n + i] != expected(from, rank, i))
				wrong("put", from * n + i);
	MPI_Win_free(&win);
	free(out);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (size_t n = 1; n <= 4 << 20; n *= 4)
		all_to_all(n);
	all_to_all(1000003);
	ring(100, 500);
	ring(200000, 20);
	one_sided(70000);
	long long mine = rank + 1, sum = 0;
	MPI_Allreduce(&mine, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (sum != (long long)size * (size + 1) / 2)
		wrong("sum", 0);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("all right: %d ranks\n", size);
	MPI_Finalize();
	return 0;
}
