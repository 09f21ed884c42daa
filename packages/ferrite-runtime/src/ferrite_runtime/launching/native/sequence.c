/* Starts a prepared sequence of kernels, and of matrix products between them, in one call from Python.

   `bind` turns a description, packed by launch_sequence.py, into a function of (stream, values...). A value is an
   integer (an address, a size, a number of programs) or a float. The function checks the alignment and the range of
   the values, copies them into the kernels' arguments (launches.h) and calls the CUDA driver once per kernel, or once
   for many in a row (launch_graph.h), and torch's library once per product (products.h). What it does not handle itself
   (a misaligned address, a number out of range, an error of the driver or the library) it leaves to a Python function
   that gets a code in front of the same arguments:

     -1            nothing was started
     65536 k + s   step k (from 1) failed with status s; those before it have been started
     -65536 - s    all was started; the driver refused a graph with status s, and its launches go one by one from now on

   Everything that changes from call to call lies on the stack or in a frame of its own, so any number of threads may
   call one function. The interpreter's lock is not held around the driver and the library: a launch waits while the
   device's queue is full, and another thread may be the one that has to empty it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "launch_graph.h"
#include "launches.h"
#include "products.h"

#define MAX_VALUES 4096
#define STACK_BYTES 8192

/* What a description consists of; launch_sequence.py packs the same fields in the same order. */
typedef struct {
    uint32_t values, steps;
} Header;

enum { LAUNCH, PRODUCT };

/* What each step begins with: a Record follows, or a ProductRecord. */
typedef struct {
    uint32_t kind, unused;
} Kind;

typedef struct {
    uint32_t kind;
    uint32_t at; /* place of what a call writes for it: the arguments of a launch, the matrices of a product */
    Launch launch;
    Product product;
    Row *row; /* of launches, of which this is the first; NULL where they are too few for a graph */
} Step;

typedef struct {
    Driver driver;
    Library library;
    GraphFunctions graphs;
    PyObject *otherwise;
    char *description;
    Frame *frames; /* that no call uses */
    uint32_t values, count, bytes, operands;
    Step steps[];
} Sequence;

static const char *NAME = "ferrite_runtime.sequence";

static void free_sequence(Sequence *self) {
    PyThreadState *state = PyEval_SaveThread();
    for (uint32_t k = 0; k < self->count; k++)
        if (self->steps[k].row != NULL) release_row(self->steps[k].row);
    PyEval_RestoreThread(state);
    release_frames(&self->library, self->frames, self->operands);
    Py_DECREF(self->otherwise);
    PyMem_Free(self->description);
    PyMem_Free(self);
}

static void release(PyObject *capsule) {
    Sequence *self = PyCapsule_GetPointer(capsule, NAME);
    if (self != NULL) free_sequence(self);
}

/* --- the call ---------------------------------------------------------------------------------------------------- */

static PyObject *hand_over(Sequence *self, long code, PyObject *const *args, Py_ssize_t count) {
    PyObject *all = PyTuple_New(count + 1);
    if (all == NULL) return NULL;
    PyTuple_SetItem(all, 0, PyLong_FromLong(code));
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(all, i + 1, args[i]);
    }
    PyObject *result = PyObject_Call(self->otherwise, all, NULL);
    Py_DECREF(all);
    return result;
}

/* Fills in the matrices of a product; tells whether they can be some. */
static int prepare_product(const Product *product, const Value *values, const unsigned char *reals, Matrix *matrices) {
    for (uint32_t i = 0; i < product->record.operands; i++) {
        const Operand *operand = &product->operands[i];
        Matrix *matrix = &matrices[i];
        memcpy(matrix->sizes, operand->sizes, sizeof matrix->sizes);
        for (uint32_t place = 0; operand->given >> place; place++) {
            if (!(operand->given >> place & 1)) continue;
            if (reals[operand->sizes[place]]) return 0;
            matrix->sizes[place] = values[operand->sizes[place]].integer;
        }
        int is_empty = 0;
        for (uint32_t axis = 0; axis < operand->dims; axis++) is_empty |= matrix->sizes[axis] == 0;
        matrix->address = is_empty ? 0 : values[operand->value].bits + (uint64_t)operand->addend;
        if (is_empty) continue;
        if (reals[operand->value] == 1 || !matrix->address || matrix->address & (operand->itemsize - 1)) return 0;
    }
    return 1;
}

/* Fills in what all steps need; 1: done, 0: Python has to, -1: an exception is set. */
static int prepare(const Sequence *self, PyObject *const *args, unsigned char *memory, uint32_t *grids) {
    Value values[MAX_VALUES];
    unsigned char reals[MAX_VALUES];
    for (uint32_t i = 0; i < self->values; i++) {
        int read = read_value(args[i], &values[i], &reals[i]);
        if (read <= 0) return read;
    }
    for (uint32_t k = 0; k < self->count; k++) {
        const Step *step = &self->steps[k];
        int fits = step->kind == LAUNCH ? prepare_launch(&step->launch, values, reals, memory + step->at, &grids[k])
                                        : prepare_product(&step->product, values, reals, (Matrix *)(memory + step->at));
        if (!fits) return 0;
    }
    return 1;
}

/* Starts all steps; returns 0, or the code of the one that failed. `failure` becomes the status of a refused graph. */
static long start_all(const Sequence *self, const unsigned char *memory, const uint32_t *grids, Frame *frame,
                      void *stream, int *failure) {
    for (uint32_t k = 0; k < self->count; k++) {
        const Step *step = &self->steps[k];
        const unsigned char *written = memory + step->at;
        int status = 0;
        if (step->row != NULL && play_row(step->row, written, grids + k, stream, failure))
            k += step->row->count - 1;
        else if (step->kind == PRODUCT)
            status = multiply(&self->library, &step->product, frame, (const Matrix *)written);
        else if (grids[k])
            status = start_launch(&self->driver, &step->launch, grids[k], written, stream);
        if (status) return 65536L * (long)(k + 1) + status;
    }
    return 0;
}

static PyObject *run(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
    Sequence *self = PyCapsule_GetPointer(capsule, NAME);
    if (self == NULL) return NULL;
    if (count != (Py_ssize_t)self->values + 1) {
        PyErr_Format(PyExc_TypeError, "%zd values are needed, got %zd", (Py_ssize_t)self->values, count - 1);
        return NULL;
    }
    void *stream = PyLong_AsVoidPtr(args[0]);
    if (stream == NULL && PyErr_Occurred()) return NULL;

    union {
        unsigned char bytes[STACK_BYTES];
        double aligned;
    } stack;
    size_t needed = (size_t)self->bytes + sizeof(uint32_t) * self->count;
    unsigned char *memory = stack.bytes;
    if (needed > STACK_BYTES && (memory = PyMem_Malloc(needed)) == NULL) return PyErr_NoMemory();
    uint32_t *grids = (uint32_t *)(memory + self->bytes);

    long code = -1;
    int failure = 0;
    int ready = prepare(self, args + 1, memory, grids);
    Frame *frame = NULL;
    if (ready == 1 && self->operands && (frame = take_frame(&self->frames, self->operands)) == NULL) {
        PyErr_NoMemory();
        ready = -1;
    }
    if (ready == 1) {
        PyThreadState *state = PyEval_SaveThread();
        code = start_all(self, memory, grids, frame, stream, &failure);
        PyEval_RestoreThread(state);
        if (!code && failure) code = -65536L - failure;
    }
    if (frame != NULL) give_frame(&self->frames, frame);
    if (memory != stack.bytes) PyMem_Free(memory);
    if (ready < 0) return NULL;
    if (code) return hand_over(self, code, args, count);
    Py_INCREF(Py_None);
    return Py_None;
}

/* --- binding ----------------------------------------------------------------------------------------------------- */

/* Reads the description into the steps; returns what is wrong with it, or NULL. */
static const char *read_description(Sequence *self, size_t size) {
    const char *at = self->description + sizeof(Header), *end = self->description + size;
    for (uint32_t k = 0; k < self->count; k++) {
        Step *step = &self->steps[k];
        Kind kind;
        if ((size_t)(end - at) < sizeof(Kind)) return "the description is too short";
        memcpy(&kind, at, sizeof(Kind));
        at += sizeof(Kind);
        step->kind = kind.kind;
        step->at = self->bytes;
        uint32_t bytes = 0;
        const char *problem = "the description has a step that is neither a launch nor a product";
        if (kind.kind == LAUNCH) {
            problem = read_launch(&at, end, self->values, &step->launch);
            bytes = step->launch.record.bytes;
        } else if (kind.kind == PRODUCT) {
            problem = read_product(&at, end, self->values, &self->library, &step->product);
            bytes = (uint32_t)sizeof(Matrix) * step->product.record.operands;
            step->product.first = self->operands;
        }
        if (problem != NULL) return problem;
        if (kind.kind == PRODUCT) self->operands += step->product.record.operands;
        self->bytes += (bytes + 15) & ~15u;
    }
    return at == end ? NULL : "the description is too long";
}

/* Makes rows of launches that are worth a graph; tells whether there was memory for them. */
static int add_rows(Sequence *self) {
    for (uint32_t first = 0, next; first < self->count; first = next) {
        for (next = first; next < self->count && self->steps[next].kind == LAUNCH;) next++;
        uint32_t count = next - first;
        next += count == 0;
        if (count < MIN_NODES) continue;
        Step *steps = &self->steps[first];
        uint32_t end = first + count == self->count ? self->bytes : steps[count].at;
        Row *row = steps->row = new_row(&self->graphs, count, end - steps->at);
        if (row == NULL) return 0;
        for (uint32_t i = 0; i < count; i++) row->nodes[i] = (Node){&steps[i].launch, steps[i].at - steps->at};
    }
    return 1;
}

static PyMethodDef RUN = {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Starts the sequence."};

/* Copies a structure of functions, or leaves it empty where there are none; tells whether that could be. */
static int read_functions(void *to, size_t size, const char *data, Py_ssize_t known) {
    memset(to, 0, size);
    if (known == (Py_ssize_t)size) memcpy(to, data, size);
    else if (known) PyErr_SetString(PyExc_ValueError, "the functions are not all there");
    return known == 0 || known == (Py_ssize_t)size;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long launch, enter, context;
    const char *products, *graphs, *data;
    Py_ssize_t products_size, graphs_size, size;
    PyObject *otherwise;
    if (!PyArg_ParseTuple(args, "KKKy#y#y#O", &launch, &enter, &context, &products, &products_size, &graphs,
                          &graphs_size, &data, &size, &otherwise))
        return NULL;
    Driver driver = {(LaunchKernel)(uintptr_t)launch, (Enter)(uintptr_t)enter, (void *)(uintptr_t)context};
    Library library;
    GraphFunctions functions;
    if (!read_functions(&library, sizeof(Library), products, products_size) ||
        !read_functions(&functions, sizeof(GraphFunctions), graphs, graphs_size))
        return NULL;
    Header header = {0, 0};
    if ((size_t)size >= sizeof(Header)) memcpy(&header, data, sizeof(Header));
    if ((size_t)size < sizeof(Header) || header.values > MAX_VALUES || header.steps > (size_t)size / sizeof(Kind)) {
        PyErr_SetString(PyExc_ValueError, "the description has no valid header");
        return NULL;
    }
    Sequence *self = PyMem_Calloc(1, sizeof(Sequence) + sizeof(Step) * header.steps);
    char *copy = PyMem_Malloc((size_t)size);
    if (self == NULL || copy == NULL) {
        PyMem_Free(self);
        PyMem_Free(copy);
        return PyErr_NoMemory();
    }
    memcpy(copy, data, (size_t)size);
    *self = (Sequence){driver, library, functions, otherwise, copy, NULL, header.values, header.steps, 0, 0};
    Py_INCREF(otherwise);
    const char *problem = read_description(self, (size_t)size);
    if (problem) PyErr_SetString(PyExc_ValueError, problem);
    else if (graphs_size && !add_rows(self)) PyErr_NoMemory();
    PyObject *capsule = PyErr_Occurred() ? NULL : PyCapsule_New(self, NAME, release);
    if (capsule == NULL) {
        free_sequence(self);
        return NULL;
    }
    PyObject *function = PyCFunction_NewEx(&RUN, capsule, NULL);
    Py_DECREF(capsule);
    return function;
}

static PyMethodDef METHODS[] = {
    {"bind", bind, METH_VARARGS,
     "bind(launch, enter, context, products, graphs, description, otherwise): returns the function of a sequence."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_sequence", "Sequences of launches.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sequence(void) { return PyModule_Create(&MODULE); }
