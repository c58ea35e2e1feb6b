/*-------------------------------------------------------------------------
 *
 * entry_sort_server.h
 *	  index_build/entry_sort.c, for a program of one file, with what it calls of
 *	  the server: memory, files in memory, and a slow heap.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_ENTRY_SORT_SERVER_H
#define CYCLONE_ENTRY_SORT_SERVER_H

#include <stdlib.h>

#include "index_build/entry_sort.c"
#include "unit.h"

MemoryContext CurrentMemoryContext = NULL;

/* A temporary file */
struct BufFile
{
	char	   *data;
	size_t		room;
	size_t		size;
	size_t		position;
};

static int	open_files = 0;
static int	most_open_files = 0;

/* GetMemoryChunkContext -- there are no contexts. */
MemoryContext
GetMemoryChunkContext(void *pointer)
{
	return CurrentMemoryContext;
}

/* MemoryContextAllocHuge -- the server's. */
void *
MemoryContextAllocHuge(MemoryContext context, Size size)
{
	return malloc(size);
}

/* repalloc -- the same. */
void *
repalloc(void *pointer, Size size)
{
	return realloc(pointer, size);
}

/* mul_size -- no size is too large. */
Size
mul_size(Size a, Size b)
{
	return a * b;
}

/* BufFileCreateTemp -- a file in memory. */
BufFile *
BufFileCreateTemp(bool interXact)
{
	open_files++;
	most_open_files = Max(most_open_files, open_files);
	return calloc(1, sizeof(BufFile));
}

/* BufFileWrite -- at its position. */
void
BufFileWrite(BufFile *file, const void *data, size_t size)
{
	if (file->position + size > file->room)
		file->data = realloc(file->data, file->room = 2 * (file->position + size));
	memcpy(file->data + file->position, data, size);
	file->size = file->position += size;
}

/* BufFileSeek -- to a position from the beginning. */
int
BufFileSeek(BufFile *file, int number, off_t offset, int whence)
{
	file->position = offset;
	return 0;
}

/* BufFileReadExact -- no more than there is. */
void
BufFileReadExact(BufFile *file, void *data, size_t size)
{
	CHECK(file->position + size <= file->size);
	memcpy(data, file->data + file->position, size);
	file->position += size;
}

/* BufFileClose -- it is gone. */
void
BufFileClose(BufFile *file)
{
	open_files--;
	free(file->data);
	free(file);
}

/* binaryheap_allocate -- the first node is the greatest; the others are in no order. */
binaryheap *
binaryheap_allocate(int capacity, binaryheap_comparator compare, void *arg)
{
	binaryheap *heap = calloc(1, offsetof(binaryheap, bh_nodes) + capacity * sizeof(bh_node_type));

	heap->bh_space = capacity;
	heap->bh_compare = compare;
	heap->bh_arg = arg;
	return heap;
}

/* binaryheap_free -- the server's. */
void
binaryheap_free(binaryheap *heap)
{
	free(heap);
}

/* binaryheap_add_unordered -- behind the others. */
void
binaryheap_add_unordered(binaryheap *heap, bh_node_type node)
{
	heap->bh_nodes[heap->bh_size++] = node;
}

/* binaryheap_build -- put the greatest first. */
void
binaryheap_build(binaryheap *heap)
{
	for (int i = 1; i < heap->bh_size; i++)
		if (heap->bh_compare(heap->bh_nodes[i], heap->bh_nodes[0], heap->bh_arg) > 0)
		{
			bh_node_type node = heap->bh_nodes[0];

			heap->bh_nodes[0] = heap->bh_nodes[i];
			heap->bh_nodes[i] = node;
		}
}

/* binaryheap_first -- the greatest. */
bh_node_type
binaryheap_first(binaryheap *heap)
{
	return heap->bh_nodes[0];
}

/* binaryheap_replace_first -- by another. */
void
binaryheap_replace_first(binaryheap *heap, bh_node_type node)
{
	heap->bh_nodes[0] = node;
	binaryheap_build(heap);
}

/* binaryheap_remove_first -- by the last one. */
bh_node_type
binaryheap_remove_first(binaryheap *heap)
{
	bh_node_type node = heap->bh_nodes[0];

	heap->bh_nodes[0] = heap->bh_nodes[--heap->bh_size];
	binaryheap_build(heap);
	return node;
}

/* qsort_arg -- that of the C library. */
void
qsort_arg(void *base, size_t number, size_t size, qsort_arg_comparator compare, void *arg)
{
	qsort_r(base, number, size, compare, arg);
}

#endif							/* CYCLONE_ENTRY_SORT_SERVER_H */
