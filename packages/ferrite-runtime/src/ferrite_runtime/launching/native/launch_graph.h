/* Launches in a row as an executable graph of the driver: what costs the host a call per kernel becomes one call.

   A row of launches starts one by one the first few times; then it becomes a graph, a chain of its kernels. A call
   compares the arguments and numbers of programs that it has prepared with those that the nodes have, sets the nodes
   that differ, and launches the graph. Launches that are under way keep what they were launched with: "already enqueued
   or running launches of hGraphExec are not affected" (CUDA Driver API, cuGraphExecKernelNodeSetParams). A row may have
   a second graph, for another stream or for buffers that lie now here, now there, as a result does while the caller
   still has the one before.

   What no graph is right for, the caller starts one by one; it is told so before anything was started. So it is while
   the stream is capturing; where a kernel has no programs; on a stream that no graph is for, since "each launch is
   ordered behind [...] any previous launches of hGraphExec" (cuGraphLaunch), as streams are not behind each other; and
   for the second of two calls at once, since graphs are not thread-safe. */

#ifndef FERRITE_LAUNCH_GRAPH_H
#define FERRITE_LAUNCH_GRAPH_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launches.h"

/* Launches that are worth a graph: starting one costs the host less than starting a kernel. */
#define MIN_NODES 4
/* Graphs of a row, and of a process: each takes memory of the host and of the device for every node. */
#define ROW_GRAPHS 2
#define MAX_GRAPHS 128
/* Calls before a graph is made, which costs as much as several: many sequences run once or twice only, and the places
   of buffers settle in the first calls. */
#define FIRST_CALLS 3
/* Percent of the nodes that calls may set, as a rule, before a second graph is made for them: setting a node takes a
   fifteenth of a launch (0.2 of 3.2 us on an H200). */
#define MAX_CHANGED 50
/* By how many the calls that set more nodes must outnumber the others for that. */
#define MAX_DISTANT 8
/* Calls in a row on a stream without a graph, after which it gets one; if need be, those of other streams go. */
#define MAX_STRANGE 8
/* Calls until a row without graphs tries again; twice as many each time. */
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

/* CUgraphEdgeData of the driver: how one node depends on another. */
typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} Edge;

/* A kernel starts once all programs of the one before it have begun, which let it (CUDA Driver API, CUgraphEdgeData). */
static const Edge PROGRAMMATIC = {1 /* CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC */, 0, 1 /* ..._TYPE_PROGRAMMATIC */, {0}};

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
    int (*depend)(void *graph, void *const *from, void *const *to, const Edge *edges, size_t count);
} GraphFunctions;

typedef struct {
    const Launch *launch;
    uint32_t at; /* place of its arguments in those of the row */
} Node;

typedef struct {
    void *definition, *executable; /* NULL: not made */
    void *stream;
    void **handles; /* of its nodes, and what they have */
    uint32_t *grids;
    unsigned char *arguments;
} Graph;

typedef struct {
    const GraphFunctions *functions;
    uint32_t count, bytes; /* of nodes; of their arguments */
    char busy;             /* a call uses the graphs */
    char is_off;           /* the driver refused one */
    uint32_t wait, rest;   /* calls until there is one; and the next time, after all were given up */
    uint32_t distant, strange;
    pid_t owner; /* a forked child has no use for its parent's graphs */
    Graph graphs[ROW_GRAPHS];
    Node nodes[];
} Row;

static uint32_t graphs_alive;

/* Returns a row of launches that are still to be named; NULL where there is no memory. */
static Row *new_row(const GraphFunctions *functions, uint32_t count, uint32_t bytes) {
    size_t size = sizeof(Row) + sizeof(Node) * count;
    size_t handles = sizeof(void *) * count, grids = sizeof(uint32_t) * count;
    Row *self = calloc(1, size + ROW_GRAPHS * (handles + grids + bytes));
    if (self == NULL) return NULL;
    self->functions = functions;
    self->count = count;
    self->bytes = bytes;
    self->wait = FIRST_CALLS;
    self->rest = FIRST_REST;
    char *at = (char *)self + size;
    for (uint32_t i = 0; i < ROW_GRAPHS; i++, at += handles) self->graphs[i].handles = (void **)at;
    for (uint32_t i = 0; i < ROW_GRAPHS; i++, at += grids) self->graphs[i].grids = (uint32_t *)at;
    for (uint32_t i = 0; i < ROW_GRAPHS; i++, at += bytes) self->graphs[i].arguments = (unsigned char *)at;
    return self;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* Discards a graph, if it was made; launches that are under way go on. */
static void discard_graph(const Row *self, Graph *graph) {
    if (graph->definition != NULL && self->owner == getpid()) {
        int mode = CAPTURE_MODE_RELAXED;
        int is_relaxed = !self->functions->exchange_mode(&mode);
        if (graph->executable != NULL) self->functions->discard_executable(graph->executable);
        self->functions->discard(graph->definition);
        if (is_relaxed) self->functions->exchange_mode(&mode);
        __atomic_sub_fetch(&graphs_alive, 1, __ATOMIC_RELAXED);
    }
    graph->definition = graph->executable = NULL;
}

static void discard_graphs(Row *self) {
    for (uint32_t i = 0; i < ROW_GRAPHS; i++) discard_graph(self, &self->graphs[i]);
    self->distant = self->strange = 0;
}

/* Has no graph for a while. */
static void rest_row(Row *self) {
    discard_graphs(self);
    self->wait = self->rest;
    if (self->rest < LONGEST_REST) self->rest *= 2;
}

static NodeParams node_params(const Node *node, uint32_t grid, const unsigned char *arguments, void **pointers) {
    const Record *record = &node->launch->record;
    uint32_t depths[2];
    read_depths(record, arguments + node->at, depths);
    point_at_arguments(node->launch, arguments + node->at, pointers);
    return (NodeParams){(void *)(uintptr_t)record->function, {grid, depths[0], depths[1]},
                        {record->threads, 1, 1}, record->shared, pointers, NULL, NULL, NULL};
}

/* Keeps what node number i of a graph has from now on. */
static void keep_node(const Row *self, Graph *graph, uint32_t i, uint32_t grid, const unsigned char *arguments) {
    const Node *node = &self->nodes[i];
    graph->grids[i] = grid;
    memcpy(graph->arguments + node->at, arguments + node->at, node->launch->record.bytes);
}

/* Makes a graph with the arguments of a call; returns the driver's status. */
static int make_graph(Row *self, Graph *graph, const unsigned char *arguments, const uint32_t *grids, void *stream) {
    void *pointers[MAX_PARAMS];
    int status = self->functions->create(&graph->definition, 0);
    if (status) {
        graph->definition = NULL;
        return status;
    }
    __atomic_add_fetch(&graphs_alive, 1, __ATOMIC_RELAXED);
    self->owner = getpid();
    graph->stream = stream;
    for (uint32_t i = 0; i < self->count; i++) {
        NodeParams params = node_params(&self->nodes[i], grids[i], arguments, pointers);
        void **handle = &graph->handles[i];
        int overlaps = i > 0 && self->functions->depend != NULL && uses_pdl(&self->nodes[i].launch->record, grids[i]);
        int depends = i > 0 && !overlaps;
        status = self->functions->add(handle, graph->definition, depends ? handle - 1 : NULL, depends, &params);
        if (!status && overlaps) status = self->functions->depend(graph->definition, handle - 1, handle, &PROGRAMMATIC, 1);
        if (status) return status;
        keep_node(self, graph, i, grids[i], arguments);
    }
    status = self->functions->instantiate(&graph->executable, graph->definition, 0);
    if (status) graph->executable = NULL;
    return status;
}

/* Makes a graph and starts it; returns the driver's status. */
static int begin_graph(Row *self, Graph *graph, const unsigned char *arguments, const uint32_t *grids, void *stream) {
    int mode = CAPTURE_MODE_RELAXED;
    int status = self->functions->exchange_mode(&mode);
    if (status) return status;
    status = make_graph(self, graph, arguments, grids, stream);
    if (!status) status = self->functions->launch(graph->executable, stream);
    self->functions->exchange_mode(&mode);
    return status;
}

/* --- playing ----------------------------------------------------------------------------------------------------- */

static int is_changed(const Row *self, const Graph *graph, uint32_t i, const unsigned char *arguments, uint32_t grid) {
    const Node *node = &self->nodes[i];
    return graph->grids[i] != grid ||
           memcmp(graph->arguments + node->at, arguments + node->at, node->launch->record.bytes);
}

static uint32_t count_changed(const Row *self, const Graph *graph, const unsigned char *arguments,
                              const uint32_t *grids) {
    uint32_t changed = 0;
    for (uint32_t i = 0; i < self->count; i++) changed += is_changed(self, graph, i, arguments, grids[i]) != 0;
    return changed;
}

/* Sets the nodes that differ from what a call has and starts the graph; returns the driver's status. */
static int update_graph(Row *self, Graph *graph, const unsigned char *arguments, const uint32_t *grids) {
    void *pointers[MAX_PARAMS];
    for (uint32_t i = 0; i < self->count; i++) {
        if (!is_changed(self, graph, i, arguments, grids[i])) continue;
        NodeParams params = node_params(&self->nodes[i], grids[i], arguments, pointers);
        int status = self->functions->set(graph->executable, graph->handles[i], &params);
        if (status) return status;
        keep_node(self, graph, i, grids[i], arguments);
    }
    return self->functions->launch(graph->executable, graph->stream);
}

static int is_full(void) { return __atomic_load_n(&graphs_alive, __ATOMIC_RELAXED) >= MAX_GRAPHS; }

/* Tells whether a graph may start these launches on this stream. */
static int is_playable(const Row *self, const uint32_t *grids, void *stream) {
    int capturing = 0;
    for (uint32_t i = 0; i < self->count; i++)
        if (!grids[i]) return 0;
    return stream != STREAM_PER_THREAD && !self->functions->is_capturing(stream, &capturing) && !capturing;
}

/* Returns the graph to start a call with, which may have to be made; NULL if it is to be started one by one. */
static Graph *choose_graph(Row *self, const unsigned char *arguments, const uint32_t *grids, void *stream) {
    Graph *best = NULL, *room = NULL;
    uint32_t made = 0, fewest = 0;
    for (uint32_t i = 0; i < ROW_GRAPHS; i++) {
        Graph *graph = &self->graphs[i];
        if (graph->executable == NULL) {
            room = graph;
            continue;
        }
        made++;
        if (graph->stream != stream) continue;
        uint32_t changed = count_changed(self, graph, arguments, grids);
        if (best == NULL || changed < fewest) best = graph, fewest = changed;
    }
    if (!made) return room;
    if (is_full()) room = NULL;
    if (best != NULL) {
        self->strange = 0;
        if ((uint64_t)fewest * 100 <= (uint64_t)self->count * MAX_CHANGED) {
            self->distant -= self->distant > 0;
            return best;
        }
        if (room == NULL || ++self->distant < MAX_DISTANT) return best;
        self->distant = 0;
        return room;
    }
    if (++self->strange < MAX_STRANGE) return NULL;
    if (room == NULL) discard_graphs(self);
    self->strange = 0;
    return room != NULL ? room : &self->graphs[0];
}

/* Starts the launches as a graph where that is possible; tells whether they are started. */
static int play_alone(Row *self, const unsigned char *arguments, const uint32_t *grids, void *stream, int *failure) {
    if (self->is_off) return 0;
    if (self->wait) {
        self->wait--;
        return 0;
    }
    Graph *graph = is_playable(self, grids, stream) ? choose_graph(self, arguments, grids, stream) : NULL;
    if (graph == NULL) return 0;
    if (graph->executable == NULL && is_full()) {
        rest_row(self);
        return 0;
    }
    int status = graph->executable != NULL ? update_graph(self, graph, arguments, grids)
                                           : begin_graph(self, graph, arguments, grids, stream);
    if (status == INVALID_CONTEXT) { /* this thread has none: its first launch will give it one */
        if (graph->executable == NULL) discard_graph(self, graph);
    } else if (status) {
        discard_graphs(self);
        self->is_off = 1;
        *failure = status;
    }
    return !status;
}

/* Starts the launches, with their arguments and numbers of programs, as a graph; tells whether they are started.

   Where they are not, they have to be one by one. `failure` becomes the status where the driver refuses the graph; it
   is not asked again. */
static int play_row(Row *self, const unsigned char *arguments, const uint32_t *grids, void *stream, int *failure) {
    if (__atomic_test_and_set(&self->busy, __ATOMIC_ACQUIRE)) return 0;
    int started = play_alone(self, arguments, grids, stream, failure);
    __atomic_clear(&self->busy, __ATOMIC_RELEASE);
    return started;
}

/* Frees a row that no call uses any more. */
static void release_row(Row *self) {
    discard_graphs(self);
    free(self);
}

#endif
