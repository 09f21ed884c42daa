/* Starts a prepared sequence of kernels, and of matrix products between them, in one call from Python.

   `bind` turns a description, packed by launch_sequence.py, into a function of (stream, values...). A value is an
   integer (an address, a size, a number of programs) or a float. The function checks the alignment and the range of
   the values, copies them into the kernels' arguments and calls the CUDA driver once per kernel, torch's library once
   per product (products.h). What it does not handle itself (a misaligned address, a number out of range, an error of
   the driver or the library) it leaves to a Python function that gets a code in front of the same arguments:

     -1            nothing was started
     65536 k + s   step k (from 1) failed with status s; those before it have been started

   Everything that changes from call to call lies on the stack or in a frame of its own, so any number of threads may
   call one function. The interpreter's lock is not held around the driver and the library: a launch waits while the
   device's queue is full, and another thread may be the one that has to empty it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "products.h"

#define MAX_VALUES 1024
#define MAX_ARGUMENT_BYTES 4096
#define MAX_PARAMS 512
#define MAX_CODE 256
#define MAX_DEPTH 16
#define INVALID_CONTEXT 201
#define STACK_BYTES 8192

/* CUlaunchConfig of the driver. */
typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    void *stream;
    void *attributes;
    unsigned int attribute_count;
} Config;

typedef int (*Launch)(const Config *, void *, void **, void **);
typedef int (*Enter)(void *);

enum { POINTER, SIGNED, UNSIGNED, FLOAT, BOOLEAN };
enum { VALUE, NUMBER, ADD, SUB, MUL, FLOORDIV, CEILDIV, MOD, MIN, MAX, OPERATORS };

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
    uint64_t function;
    uint32_t grid[3];
    uint32_t threads, shared;
    int32_t grid_value; /* index of the value that says how many programs there are; -1: grid[0] does */
    uint32_t bytes;     /* of arguments, which start out as the template that follows the fills */
    uint32_t params, fills;
    uint32_t code; /* instructions that compute the number of programs, after the template; 0: see grid_value */
} Record;

typedef struct {
    uint32_t value, offset;
    uint16_t kind, size;
    uint32_t align;
    int64_t addend;
} Fill;

/* One step of an integer expression in postfix order: pushes a value or a number, or takes two operands. */
typedef struct {
    int64_t operand;
    uint32_t operator, unused;
} Instruction;

typedef struct {
    uint32_t kind;
    uint32_t bytes; /* that a call writes for it: the arguments of a launch, the matrices of a product */
    Record record;
    const uint32_t *offsets; /* of the params in the arguments */
    const Fill *fills;
    const unsigned char *template;
    const Instruction *code;
    Product product;
} Step;

typedef struct {
    Launch launch;
    Enter enter;
    void *context;
    PyObject *otherwise;
    char *description;
    Library library;
    Frame *frames; /* that no call uses */
    uint32_t values, count, bytes, handles;
    Step steps[];
} Sequence;

typedef union {
    int64_t integer;
    uint64_t bits;
    double real;
} Value;

static const char *NAME = "ferrite_runtime.sequence";

static void release(PyObject *capsule) {
    Sequence *self = PyCapsule_GetPointer(capsule, NAME);
    if (self == NULL) return;
    release_frames(&self->library, self->frames, self->handles);
    Py_XDECREF(self->otherwise);
    PyMem_Free(self->description);
    PyMem_Free(self);
}

/* --- values ------------------------------------------------------------------------------------------------------ */

/* Reads one number; 1: done, 0: not one that fits, -1: an exception is set. */
static int read_value(PyObject *object, Value *value, unsigned char *is_real) {
    if (PyFloat_Check(object)) {
        value->real = PyFloat_AsDouble(object);
        *is_real = 1;
        return 1;
    }
    *is_real = 0;
    if (!PyLong_Check(object)) return 0;
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow > 0) {
        value->bits = PyLong_AsUnsignedLongLong(object);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        *is_real = 2; /* too large for a signed number */
        return 1;
    }
    if (overflow < 0) return 0;
    if (number == -1 && PyErr_Occurred()) return -1;
    value->integer = number;
    return 1;
}

static int fits(int64_t number, const Fill *fill) {
    if (fill->size == 8) return fill->kind == SIGNED || number >= 0;
    int bits = fill->size * 8;
    if (fill->kind == SIGNED) return number >= -((int64_t)1 << (bits - 1)) && number < ((int64_t)1 << (bits - 1));
    return number >= 0 && number < ((int64_t)1 << bits);
}

/* Writes one argument; tells whether the value is one that the param can take. */
static int write_argument(const Fill *fill, const Value *value, unsigned char is_real, unsigned char *to) {
    if (fill->kind == FLOAT) {
        double real = is_real == 1 ? value->real : is_real == 2 ? (double)value->bits : (double)value->integer;
        float narrow = (float)real;
        if (fill->size == 8) memcpy(to, &real, 8);
        else memcpy(to, &narrow, 4);
        return 1;
    }
    if (is_real == 1) return 0;
    if (fill->kind == BOOLEAN) {
        *to = value->bits != 0;
        return 1;
    }
    if (is_real == 2 && (fill->kind == SIGNED || fill->size < 8)) return 0;
    uint64_t bits = value->bits + (uint64_t)fill->addend;
    if (fill->kind == POINTER) {
        memcpy(to, &bits, 8);
        return fill->align == 0 || (bits & (fill->align - 1)) == 0;
    }
    memcpy(to, &bits, fill->size); /* the low bytes come first on every machine that CUDA runs on */
    return is_real == 2 || fits(value->integer, fill);
}

/* Divides towards minus infinity, as Python does; tells whether there is a quotient. */
static int floordiv(int64_t a, int64_t b, int64_t *quotient) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
    *quotient = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return 1;
}

/* Computes `a operator b`; tells whether the result is a number of 64 bits. */
static int apply(uint32_t operator, int64_t a, int64_t b, int64_t *result) {
    int64_t quotient;
    switch (operator) {
    case ADD: return !__builtin_add_overflow(a, b, result);
    case SUB: return !__builtin_sub_overflow(a, b, result);
    case MUL: return !__builtin_mul_overflow(a, b, result);
    case FLOORDIV: return floordiv(a, b, result);
    case CEILDIV:
        if (a == INT64_MIN || !floordiv(-a, b, &quotient) || quotient == INT64_MIN) return 0;
        *result = -quotient;
        return 1;
    case MOD: return floordiv(a, b, &quotient) && (*result = a - quotient * b, 1);
    case MIN: *result = a < b ? a : b; return 1;
    case MAX: *result = a > b ? a : b; return 1;
    }
    return 0;
}

/* Computes an expression that `read_description` has checked; 0: not one of integers of 64 bits. */
static int compute(const Step *step, const Value *values, const unsigned char *reals, int64_t *result) {
    int64_t stack[MAX_DEPTH];
    int depth = 0;
    for (uint32_t i = 0; i < step->record.code; i++) {
        const Instruction *next = &step->code[i];
        if (next->operator == NUMBER) {
            stack[depth++] = next->operand;
        } else if (next->operator == VALUE) {
            if (reals[next->operand]) return 0;
            stack[depth++] = values[next->operand].integer;
        } else {
            depth--;
            if (!apply(next->operator, stack[depth - 1], stack[depth], &stack[depth - 1])) return 0;
        }
    }
    *result = stack[0];
    return 1;
}

/* --- the call ---------------------------------------------------------------------------------------------------- */

static int start(const Sequence *self, const Step *step, Config *config, unsigned char *arguments) {
    void *pointers[MAX_PARAMS];
    for (uint32_t i = 0; i < step->record.params; i++) pointers[i] = arguments + step->offsets[i];
    void *function = (void *)(uintptr_t)step->record.function;
    int status = self->launch(config, function, pointers, NULL);
    if (status == INVALID_CONTEXT && self->enter(self->context) == 0)
        status = self->launch(config, function, pointers, NULL);
    return status;
}

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

/* Fills in the arguments of a launch and its number of programs; tells whether all of it fits. */
static int prepare_launch(const Step *step, const Value *values, const unsigned char *reals, unsigned char *arguments,
                          uint32_t *grid) {
    const Record *record = &step->record;
    *grid = record->grid[0];
    if (record->code || record->grid_value >= 0) {
        int64_t programs;
        if (record->code) {
            if (!compute(step, values, reals, &programs)) return 0;
        } else {
            if (reals[record->grid_value]) return 0;
            programs = values[record->grid_value].integer;
        }
        if (programs > INT32_MAX) return 0;
        *grid = programs > 0 ? (uint32_t)programs : 0;
    }
    memcpy(arguments, step->template, record->bytes);
    for (uint32_t i = 0; i < record->fills; i++) {
        const Fill *fill = &step->fills[i];
        if (!write_argument(fill, &values[fill->value], reals[fill->value], arguments + fill->offset)) {
            if (*grid) return 0;
        }
    }
    return 1;
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
static int prepare(const Sequence *self, PyObject *const *args, unsigned char *arguments, uint32_t *grids) {
    Value values[MAX_VALUES];
    unsigned char reals[MAX_VALUES];
    for (uint32_t i = 0; i < self->values; i++) {
        int read = read_value(args[i], &values[i], &reals[i]);
        if (read <= 0) return read;
    }
    for (uint32_t k = 0; k < self->count; k++) {
        const Step *step = &self->steps[k];
        int fits = step->kind == LAUNCH ? prepare_launch(step, values, reals, arguments, &grids[k])
                                        : prepare_product(&step->product, values, reals, (Matrix *)arguments);
        if (!fits) return 0;
        arguments += (step->bytes + 15) & ~15u;
    }
    return 1;
}

/* Starts all steps; returns 0, or the code of the one that failed. */
static long start_all(const Sequence *self, unsigned char *arguments, const uint32_t *grids, Frame *frame,
                      void *stream) {
    for (uint32_t k = 0; k < self->count; k++) {
        const Step *step = &self->steps[k];
        const Record *record = &step->record;
        int status = 0;
        if (step->kind == PRODUCT) {
            status = multiply(&self->library, &step->product, frame, (const Matrix *)arguments);
        } else if (grids[k]) {
            Config config = {{grids[k], record->grid[1], record->grid[2]}, {record->threads, 1, 1},
                             record->shared, stream, NULL, 0};
            status = start(self, step, &config, arguments);
        }
        if (status) return 65536L * (long)(k + 1) + status;
        arguments += (step->bytes + 15) & ~15u;
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
    int ready = prepare(self, args + 1, memory, grids);
    Frame *frame = NULL;
    if (ready == 1 && self->handles && (frame = take_frame(&self->frames, self->handles)) == NULL) {
        PyErr_NoMemory();
        ready = -1;
    }
    if (ready == 1) {
        PyThreadState *state = PyEval_SaveThread();
        code = start_all(self, memory, grids, frame, stream);
        PyEval_RestoreThread(state);
    }
    if (frame != NULL) give_frame(&self->frames, frame);
    if (memory != stack.bytes) PyMem_Free(memory);
    if (ready < 0) return NULL;
    if (code) return hand_over(self, code, args, count);
    Py_INCREF(Py_None);
    return Py_None;
}

/* --- binding ----------------------------------------------------------------------------------------------------- */

/* Tells whether an expression takes known values only and leaves one number. */
static int is_expression(const Step *step, uint32_t values) {
    int depth = 0;
    for (uint32_t i = 0; i < step->record.code; i++) {
        const Instruction *next = &step->code[i];
        if (next->operator >= OPERATORS) return 0;
        if (next->operator == VALUE && (next->operand < 0 || next->operand >= (int64_t)values)) return 0;
        depth += next->operator <= NUMBER ? 1 : -1;
        if (depth < 1 || depth > MAX_DEPTH) return 0;
    }
    return step->record.code == 0 || depth == 1;
}

/* Reads a launch at `*at` and moves past it; returns what is wrong with it, or NULL. */
static const char *read_launch(const char **at, const char *end, uint32_t values, Step *step) {
    if ((size_t)(end - *at) < sizeof(Record)) return "the description is too short";
    memcpy(&step->record, *at, sizeof(Record));
    *at += sizeof(Record);
    const Record *record = &step->record;
    if (record->params > MAX_PARAMS || record->fills > MAX_PARAMS || record->bytes > MAX_ARGUMENT_BYTES)
        return "a launch has too many arguments";
    if (record->grid_value >= (int32_t)values) return "a number of programs is no value";
    if (record->code > MAX_CODE) return "a number of programs takes too many instructions";
    size_t offsets = (4 * (size_t)record->params + 7) & ~(size_t)7, fills = sizeof(Fill) * record->fills;
    size_t template = ((size_t)record->bytes + 7) & ~(size_t)7;
    size_t code = sizeof(Instruction) * record->code;
    if ((size_t)(end - *at) < offsets + fills + template + code) return "the description is too short";
    step->offsets = (const uint32_t *)*at;
    step->fills = (const Fill *)(*at + offsets);
    step->template = (const unsigned char *)(*at + offsets + fills);
    step->code = (const Instruction *)(*at + offsets + fills + template);
    *at += offsets + fills + template + code;
    for (uint32_t i = 0; i < record->params; i++)
        if (step->offsets[i] > record->bytes) return "a param lies outside the arguments";
    for (uint32_t i = 0; i < record->fills; i++) {
        const Fill *fill = &step->fills[i];
        if (fill->value >= values || (size_t)fill->offset + fill->size > record->bytes || fill->size > 8)
            return "an argument is outside its bounds";
    }
    return is_expression(step, values) ? NULL : "a number of programs is no expression";
}

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
        const char *problem = "the description has a step that is neither a launch nor a product";
        if (kind.kind == LAUNCH) {
            problem = read_launch(&at, end, self->values, step);
            step->bytes = step->record.bytes;
        } else if (kind.kind == PRODUCT) {
            problem = read_product(&at, end, self->values, &self->library, &step->product);
            step->bytes = (uint32_t)sizeof(Matrix) * step->product.record.operands;
            step->product.first = self->handles;
        }
        if (problem != NULL) return problem;
        if (kind.kind == PRODUCT) self->handles += step->product.record.operands;
        self->bytes += (step->bytes + 15) & ~15u;
    }
    return at == end ? NULL : "the description is too long";
}

static PyMethodDef RUN = {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Starts the sequence."};

static PyObject *bind(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long launch, enter, context;
    const char *functions, *data;
    Py_ssize_t known, size;
    PyObject *otherwise;
    if (!PyArg_ParseTuple(args, "KKKy#y#O", &launch, &enter, &context, &functions, &known, &data, &size, &otherwise))
        return NULL;
    Library library;
    memset(&library, 0, sizeof(Library));
    if (known == sizeof(Library)) memcpy(&library, functions, sizeof(Library));
    else if (known) {
        PyErr_SetString(PyExc_ValueError, "the library's functions are not all there");
        return NULL;
    }
    Header header = {0, 0};
    if ((size_t)size >= sizeof(Header)) memcpy(&header, data, sizeof(Header));
    if ((size_t)size < sizeof(Header) || header.values > MAX_VALUES || header.steps > (size_t)size / sizeof(Kind)) {
        PyErr_SetString(PyExc_ValueError, "the description has no valid header");
        return NULL;
    }
    Sequence *self = PyMem_Malloc(sizeof(Sequence) + sizeof(Step) * header.steps);
    char *copy = PyMem_Malloc((size_t)size);
    if (self == NULL || copy == NULL) {
        PyMem_Free(self);
        PyMem_Free(copy);
        return PyErr_NoMemory();
    }
    memcpy(copy, data, (size_t)size);
    *self = (Sequence){(Launch)(uintptr_t)launch, (Enter)(uintptr_t)enter, (void *)(uintptr_t)context,
                       otherwise, copy, library, NULL, header.values, header.steps, 0, 0};
    const char *problem = read_description(self, (size_t)size);
    PyObject *capsule = problem ? NULL : PyCapsule_New(self, NAME, release);
    if (capsule == NULL) {
        if (problem) PyErr_SetString(PyExc_ValueError, problem);
        PyMem_Free(copy);
        PyMem_Free(self);
        return NULL;
    }
    Py_INCREF(otherwise);
    PyObject *function = PyCFunction_NewEx(&RUN, capsule, NULL);
    Py_DECREF(capsule);
    return function;
}

static PyMethodDef METHODS[] = {
    {"bind", bind, METH_VARARGS,
     "bind(launch, enter, context, library, description, otherwise): returns the function that starts a sequence."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_sequence", "Sequences of launches.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sequence(void) { return PyModule_Create(&MODULE); }
