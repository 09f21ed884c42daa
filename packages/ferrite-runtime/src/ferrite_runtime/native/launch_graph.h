/* Launches in a row as one executable graph of the driver: what costs the host a call per kernel becomes one call.

   A run of launches starts one by one the first few times; then it becomes a graph, a chain of its kernels. A call
   compares the arguments and numbers of programs that it has prepared with those that the nodes have, sets the nodes
   that differ, and launches the graph. Launches that are under way keep what they were launched with: "already enqueued
   or running launches of hGraphExec are not affected" (CUDA Driver API, cuGraphExecKernelNodeSetParams).

   What a graph is not right for, the caller starts one by one; it is told so before anything was started. So it is
   while the stream is capturing; where a kernel has no programs; on another stream than the graph's, for "each launch
   is ordered behind [...] any previous launches of hGraphExec" (cuGraphLaunch), as streams are not behind each other;
   and for the second of two calls at once, since graphs are not thread-safe. */

#ifndef FERRITE_LAUNCH_GRAPH_H
#define FERRITE_LAUNCH_GRAPH_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launches.h"

/* Launches that are worth a graph: launching one costs the host as much as two or three kernels do. */
#define MIN_NODES 8
/* Graphs of a process: each takes memory of the host and of the device for every node. */
#define MAX_GRAPHS 128
/* Calls before a graph is made, which costs as much as several: many sequences run once or twice only, and the places
   of buffers settle in the first calls. */
#define FIRST_CALLS 3
/* Percent of the nodes that a call may have to set before a graph is useless to it. */
#define MAX_CHANGED 50
/* By how many the useless calls must outnumber the others for the graph to be given up for a while. */
#define MAX_USELESS 8
/* Calls in a row on another stream after which the graph is made anew, for that stream. */
#define MAX_STRANGE 8
/* Calls until a graph that was given up is made again; twice as many each time. */
#define FIRST_REST 1024
#define LONGEST_REST (1u << 30)

#define STREAM_PER_THREAD ((void *)2) /* one handle for many streams */
/* While any thread captures a stream, another may not take memory or give it back, as making and discarding a graph do,
   unless that thread's mode says that the capture need not know of it (cuThreadExchangeStreamCaptureMode). */
#define CAPTURE_MODE_RELAXED 2

/* CUDA_KERNEL_NODE_PARAMS_v2 of the driver. */
typedef struct {
    void *function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    void **params, **extra;
    void *kernel, *context; /* not read where there is a function */
} NodeParams;

/* The driver's functions, each of which returns a status; cuda_driver.py packs the same addresses in the same order. */
typedef struct {
    int (*create)(void **graph, unsigned int flags);
    int (*add)(void **node, void *graph, void *const *dependencies, size_t count, const NodeParams *params);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*set)(void *executable, void *node, const NodeParams *params);
    int (*launch)(void *executable, void *stream);
    int (*discard_executable)(void *executable);
    int (*discard)(void *graph);
    int (*is_capturing)(void *stream, int *capturing);
    int (*exchange_mode)(int *mode);
} GraphFunctions;

typedef struct {
    const Launch *launch;
    uint32_t at;   /* place of its arguments in those of the run */
    uint32_t grid; /* that the node has */
    void *handle;
} Node;

typedef struct {
    const GraphFunctions *functions;
    uint32_t count, bytes; /* of nodes; of their arguments */
    char busy;             /* a call uses the graph */
    char is_off;           /* the driver refused it */
    uint32_t wait, rest;   /* calls until it is made; and the next time, after it was given up */
    uint32_t useless, strange;
    pid_t owner; /* a forked child has no use for its parent's graphs */
    void *graph, *executable, *stream;
    unsigned char *arguments; /* that the nodes have */
    Node nodes[];
} LaunchGraph;

static uint32_t graphs_alive;

/* Returns what will hold a graph of launches that are still to be named; NULL where there is no memory. */
static LaunchGraph *new_graph(const GraphFunctions *functions, uint32_t count, uint32_t bytes) {
    size_t size = sizeof(LaunchGraph) + sizeof(Node) * count;
    LaunchGraph *self = malloc(size + bytes);
    if (self == NULL) return NULL;
    memset(self, 0, size);
    self->functions = functions;
    self->count = count;
    self->bytes = bytes;
    self->wait = FIRST_CALLS;
    self->rest = FIRST_REST;
    self->arguments = (unsigned char *)self + size;
    return self;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* Discards the graph, if there is one; launches that are under way go on. */
static void discard_graph(LaunchGraph *self) {
    if (self->graph == NULL) return;
    if (self->owner == getpid()) {
        int mode = CAPTURE_MODE_RELAXED;
        int is_relaxed = !self->functions->exchange_mode(&mode);
        if (self->executable != NULL) self->functions->discard_executable(self->executable);
        self->functions->discard(self->graph);
        if (is_relaxed) self->functions->exchange_mode(&mode);
        __atomic_sub_fetch(&graphs_alive, 1, __ATOMIC_RELAXED);
    }
    self->graph = self->executable = NULL;
    self->useless = self->strange = 0;
}

/* Has no graph for a while. */
static void rest_graph(LaunchGraph *self) {
    discard_graph(self);
    self->wait = self->rest;
    if (self->rest < LONGEST_REST) self->rest *= 2;
}

static NodeParams node_params(const Node *node, uint32_t grid, const unsigned char *arguments, void **pointers) {
    const Record *record = &node->launch->record;
    point_at_arguments(node->launch, arguments + node->at, pointers);
    return (NodeParams){(void *)(uintptr_t)record->function, {grid, record->grid[1], record->grid[2]},
                        {record->threads, 1, 1}, record->shared, pointers, NULL, NULL, NULL};
}

/* Keeps what a node has from now on. */
static void keep_node(LaunchGraph *self, Node *node, uint32_t grid, const unsigned char *arguments) {
    node->grid = grid;
    memcpy(self->arguments + node->at, arguments + node->at, node->launch->record.bytes);
}

/* Makes the graph, with the arguments of a call; returns the driver's status. */
static int make_graph(LaunchGraph *self, const unsigned char *arguments, const uint32_t *grids, void *stream) {
    void *pointers[MAX_PARAMS], *previous = NULL;
    int status = self->functions->create(&self->graph, 0);
    if (status) {
        self->graph = NULL;
        return status;
    }
    __atomic_add_fetch(&graphs_alive, 1, __ATOMIC_RELAXED);
    self->owner = getpid();
    self->stream = stream;
    for (uint32_t i = 0; i < self->count; i++) {
        Node *node = &self->nodes[i];
        NodeParams params = node_params(node, grids[i], arguments, pointers);
        status = self->functions->add(&node->handle, self->graph, &previous, i > 0, &params);
        if (status) return status;
        previous = node->handle;
        keep_node(self, node, grids[i], arguments);
    }
    status = self->functions->instantiate(&self->executable, self->graph, 0);
    if (status) self->executable = NULL;
    return status;
}

/* Makes the graph and starts it; returns the driver's status. */
static int begin_graph(LaunchGraph *self, const unsigned char *arguments, const uint32_t *grids, void *stream) {
    int mode = CAPTURE_MODE_RELAXED;
    int status = self->functions->exchange_mode(&mode);
    if (status) return status;
    status = make_graph(self, arguments, grids, stream);
    if (!status) status = self->functions->launch(self->executable, stream);
    self->functions->exchange_mode(&mode);
    return status;
}

/* --- playing ----------------------------------------------------------------------------------------------------- */

/* Sets the nodes that differ from what a call has; returns the driver's status. */
static int set_nodes(LaunchGraph *self, const unsigned char *arguments, const uint32_t *grids) {
    void *pointers[MAX_PARAMS];
    uint64_t changed = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        Node *node = &self->nodes[i];
        size_t bytes = node->launch->record.bytes;
        if (node->grid == grids[i] && !memcmp(self->arguments + node->at, arguments + node->at, bytes)) continue;
        NodeParams params = node_params(node, grids[i], arguments, pointers);
        int status = self->functions->set(self->executable, node->handle, &params);
        if (status) return status;
        keep_node(self, node, grids[i], arguments);
        changed++;
    }
    if (changed * 100 > (uint64_t)self->count * MAX_CHANGED) self->useless++;
    else if (self->useless) self->useless--;
    return 0;
}

/* Tells whether a graph may start these launches on this stream. */
static int is_playable(const LaunchGraph *self, const uint32_t *grids, void *stream) {
    int capturing = 0;
    for (uint32_t i = 0; i < self->count; i++)
        if (!grids[i]) return 0;
    return stream != STREAM_PER_THREAD && !self->functions->is_capturing(stream, &capturing) && !capturing;
}

/* Tells whether the graph is this stream's, or there is none to be another's. */
static int is_on_stream(LaunchGraph *self, void *stream) {
    if (self->executable == NULL) return 1;
    if (self->stream == stream) self->strange = 0;
    else if (++self->strange < MAX_STRANGE) return 0;
    else discard_graph(self);
    return 1;
}

/* Starts the launches as a graph where that is possible; tells whether they are started. */
static int play_alone(LaunchGraph *self, const unsigned char *arguments, const uint32_t *grids, void *stream,
                      int *failure) {
    if (self->is_off) return 0;
    if (self->wait) {
        self->wait--;
        return 0;
    }
    if (!is_playable(self, grids, stream) || !is_on_stream(self, stream)) return 0;
    int status;
    if (self->executable != NULL) {
        status = set_nodes(self, arguments, grids);
        if (!status) status = self->functions->launch(self->executable, stream);
    } else if (__atomic_load_n(&graphs_alive, __ATOMIC_RELAXED) < MAX_GRAPHS) {
        status = begin_graph(self, arguments, grids, stream);
    } else {
        rest_graph(self);
        return 0;
    }
    if (status == INVALID_CONTEXT) { /* this thread has none: its first launch will give it one */
        if (self->executable == NULL) discard_graph(self);
        return 0;
    }
    if (status) {
        discard_graph(self);
        self->is_off = 1;
        *failure = status;
    } else if (self->useless == MAX_USELESS) {
        rest_graph(self);
    }
    return !status;
}

/* Starts the launches as a graph, with their arguments and numbers of programs; tells whether they are started.

   Where they are not, they have to be one by one. `failure` becomes the status where the driver refuses the graph; it
   is not asked again. */
static int play_graph(LaunchGraph *self, const unsigned char *arguments, const uint32_t *grids, void *stream,
                      int *failure) {
    if (__atomic_test_and_set(&self->busy, __ATOMIC_ACQUIRE)) return 0;
    int started = play_alone(self, arguments, grids, stream, failure);
    __atomic_clear(&self->busy, __ATOMIC_RELEASE);
    return started;
}

/* Frees a graph that no call uses any more. */
static void release_graph(LaunchGraph *self) {
    discard_graph(self);
    free(self);
}

#endif
