/* Launches of kernels: what describes one, its arguments from the values of a call, and the driver's function for it.

   A value is an integer (an address, a size, a number of programs) or a float. It is copied into the arguments of those
   launches that take it, where it can be what they say: aligned, in range. */

#ifndef FERRITE_LAUNCHES_H
#define FERRITE_LAUNCHES_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_ARGUMENT_BYTES 32764
#define MAX_PARAMS 4096
#define MAX_CODE 256
#define MAX_DEPTH 16
#define INVALID_CONTEXT 201
#define PROGRAMMATIC_STREAM_SERIALIZATION 6

/* CUlaunchAttribute of the driver, of a value that is one integer. */
typedef struct {
    unsigned int name, unused;
    int value;
    char rest[60];
} Attribute;

/* CUlaunchConfig of the driver. */
typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared;
    void *stream;
    Attribute *attributes;
    unsigned int attribute_count;
} Config;

typedef int (*LaunchKernel)(const Config *, void *, void **, void **);
typedef int (*Enter)(void *);

/* The driver's functions; the context is made current in threads that have none. */
typedef struct {
    LaunchKernel launch;
    Enter enter;
    void *context;
} Driver;

enum { POINTER, SIGNED, UNSIGNED, FLOAT, BOOLEAN };
enum { VALUE, NUMBER, ADD, SUB, MUL, FLOORDIV, CEILDIV, MOD, MIN, MAX, OPERATORS };

/* launch_sequence.py packs the same fields in the same order. */
typedef struct {
    uint64_t function;
    uint32_t grid[3];
    uint32_t threads, shared;
    int32_t grid_value; /* index of the value that says how many programs there are; -1: grid[0] does */
    uint32_t bytes;     /* of arguments, which start out as the template that follows the fills */
    uint32_t params, fills;
    uint32_t code; /* instructions that compute the number of programs, after the template; 0: see grid_value */
    uint32_t pdl_from; /* programs from which it starts before what comes before it has ended: it waits by itself */
    uint32_t depths; /* place among the arguments of the programs along the second and third axis; 0: grid[1], grid[2] */
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
    Record record;
    const uint32_t *offsets; /* of the params in the arguments */
    const Fill *fills;
    const unsigned char *template;
    const Instruction *code;
} Launch;

typedef union {
    int64_t integer;
    uint64_t bits;
    double real;
} Value;

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

/* Computes an expression that `read_launch` has checked; 0: not one of integers of 64 bits. */
static int compute(const Launch *launch, const Value *values, const unsigned char *reals, int64_t *result) {
    int64_t stack[MAX_DEPTH];
    int depth = 0;
    for (uint32_t i = 0; i < launch->record.code; i++) {
        const Instruction *next = &launch->code[i];
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

/* Returns the programs along the second and third axis of a launch with these arguments. */
static void read_depths(const Record *record, const unsigned char *arguments, uint32_t depths[2]) {
    memcpy(depths, record->depths ? (const void *)(arguments + record->depths) : &record->grid[1], 2 * sizeof(uint32_t));
}

/* Fills in the arguments of a launch and its number of programs; tells whether all of it fits. */
static int prepare_launch(const Launch *launch, const Value *values, const unsigned char *reals,
                          unsigned char *arguments, uint32_t *grid) {
    const Record *record = &launch->record;
    *grid = record->grid[0];
    if (record->code || record->grid_value >= 0) {
        int64_t programs;
        if (record->code) {
            if (!compute(launch, values, reals, &programs)) return 0;
        } else {
            if (reals[record->grid_value]) return 0;
            programs = values[record->grid_value].integer;
        }
        if (programs > INT32_MAX) return 0;
        *grid = programs > 0 ? (uint32_t)programs : 0;
    }
    memcpy(arguments, launch->template, record->bytes);
    for (uint32_t i = 0; i < record->fills; i++) {
        const Fill *fill = &launch->fills[i];
        if (!write_argument(fill, &values[fill->value], reals[fill->value], arguments + fill->offset)) {
            if (*grid) return 0;
        }
    }
    uint32_t depths[2];
    read_depths(record, arguments, depths);
    if (!depths[0] || !depths[1]) *grid = 0;
    return 1;
}

/* Makes the array of pointers to arguments that the driver takes. */
static void point_at_arguments(const Launch *launch, const unsigned char *arguments, void **pointers) {
    for (uint32_t i = 0; i < launch->record.params; i++) pointers[i] = (void *)(arguments + launch->offsets[i]);
}

/* Tells whether a launch of so many programs may start before what comes before it has ended. */
static int uses_pdl(const Record *record, uint32_t grid) {
    return (uint64_t)grid * record->grid[1] * record->grid[2] >= record->pdl_from;
}

/* Starts one kernel; returns the driver's status. */
static int start_launch(const Driver *driver, const Launch *launch, uint32_t grid, const unsigned char *arguments,
                        void *stream) {
    const Record *record = &launch->record;
    Attribute pdl = {PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1, {0}};
    int has_attribute = uses_pdl(record, grid);
    uint32_t depths[2];
    read_depths(record, arguments, depths);
    Config config = {{grid, depths[0], depths[1]}, {record->threads, 1, 1}, record->shared,
                     stream, has_attribute ? &pdl : NULL, has_attribute};
    void *pointers[MAX_PARAMS], *function = (void *)(uintptr_t)record->function;
    point_at_arguments(launch, arguments, pointers);
    int status = driver->launch(&config, function, pointers, NULL);
    if (status == INVALID_CONTEXT && driver->enter(driver->context) == 0)
        status = driver->launch(&config, function, pointers, NULL);
    return status;
}

/* Tells whether an expression takes known values only and leaves one number. */
static int is_expression(const Launch *launch, uint32_t values) {
    int depth = 0;
    for (uint32_t i = 0; i < launch->record.code; i++) {
        const Instruction *next = &launch->code[i];
        if (next->operator >= OPERATORS) return 0;
        if (next->operator == VALUE && (next->operand < 0 || next->operand >= (int64_t)values)) return 0;
        depth += next->operator <= NUMBER ? 1 : -1;
        if (depth < 1 || depth > MAX_DEPTH) return 0;
    }
    return launch->record.code == 0 || depth == 1;
}

/* Reads a launch at `*at` and moves past it; returns what is wrong with it, or NULL. */
static const char *read_launch(const char **at, const char *end, uint32_t values, Launch *launch) {
    if ((size_t)(end - *at) < sizeof(Record)) return "the description is too short";
    memcpy(&launch->record, *at, sizeof(Record));
    *at += sizeof(Record);
    const Record *record = &launch->record;
    if (record->params > MAX_PARAMS || record->fills > MAX_PARAMS || record->bytes > MAX_ARGUMENT_BYTES)
        return "a launch has too many arguments";
    if (record->depths > record->bytes || (record->depths && record->bytes - record->depths < 2 * sizeof(uint32_t)))
        return "a number of programs lies outside the arguments";
    if (record->grid_value >= (int32_t)values) return "a number of programs is no value";
    if (record->code > MAX_CODE) return "a number of programs takes too many instructions";
    size_t offsets = (4 * (size_t)record->params + 7) & ~(size_t)7, fills = sizeof(Fill) * record->fills;
    size_t template = ((size_t)record->bytes + 7) & ~(size_t)7;
    size_t code = sizeof(Instruction) * record->code;
    if ((size_t)(end - *at) < offsets + fills + template + code) return "the description is too short";
    launch->offsets = (const uint32_t *)*at;
    launch->fills = (const Fill *)(*at + offsets);
    launch->template = (const unsigned char *)(*at + offsets + fills);
    launch->code = (const Instruction *)(*at + offsets + fills + template);
    *at += offsets + fills + template + code;
    for (uint32_t i = 0; i < record->params; i++)
        if (launch->offsets[i] > record->bytes) return "a param lies outside the arguments";
    for (uint32_t i = 0; i < record->fills; i++) {
        const Fill *fill = &launch->fills[i];
        if (fill->value >= values || (size_t)fill->offset + fill->size > record->bytes || fill->size > 8)
            return "an argument is outside its bounds";
    }
    return is_expression(launch, values) ? NULL : "a number of programs is no expression";
}

#endif
