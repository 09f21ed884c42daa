/* Matrix products by torch's own library, called through the C functions that it keeps stable (those of AOTInductor).

   The library takes tensors by handle. A handle is made from an address and sizes, owns no memory, and is kept: later
   calls with the same ones, as those of weights are and those of intermediate buffers mostly, use it again. A sequence
   that a program calls for each of several equal layers has as many handles of each operand, which come in the same
   order in each call of the program: making one takes as long as a small launch. What a call needs is a frame: the
   handles of all operands of a sequence. A frame belongs to one call at a time, so any number of threads may call one
   sequence; frames are taken and given back with the interpreter's lock held. */

#ifndef FERRITE_PRODUCTS_H
#define FERRITE_PRODUCTS_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 3
#define MAX_OPERANDS 4
/* Handles of one operand that are kept: of as many equal layers. Each takes about half a kilobyte. */
#define MAX_HANDLES 64

enum { MM, ADDMM, BMM, BADDBMM, PRODUCTS };

/* The C functions, 0 where this torch has none, and the device; products.py packs the same fields in the same order. */
typedef struct {
    uint64_t create, discard, products[PRODUCTS];
    int32_t device_type, device_index;
} Library;

typedef int32_t (*Create)(void *data, int64_t dims, const int64_t *sizes, const int64_t *strides, int64_t offset,
                          int32_t dtype, int32_t device_type, int32_t device_index, void **tensor);
typedef int32_t (*Discard)(void *tensor);
typedef int32_t (*Multiply)(void *out, void *left, void *right);
typedef int32_t (*MultiplyAdd)(void *out, void *summand, void *left, void *right, double beta, double alpha);

/* One matrix: at the address that a value of the call plus the addend gives, with sizes and then strides that are
   numbers or, where `given` has their bit, values of the call. */
typedef struct {
    uint32_t value, dims;
    int64_t addend;
    int32_t dtype;
    uint32_t itemsize; /* bytes of an element, a power of two: what the address must be a multiple of */
    uint32_t given, unused;
    int64_t sizes[2 * MAX_DIMS];
} Operand;

/* One matrix of a call. */
typedef struct {
    uint64_t address; /* 0 for one without elements */
    int64_t sizes[2 * MAX_DIMS];
} Matrix;

typedef struct {
    uint32_t operation, operands; /* the result is the first operand */
    double beta, alpha;
} ProductRecord;

typedef struct {
    ProductRecord record;
    const Operand *operands;
    uint32_t first; /* number of its first operand in a frame */
} Product;

typedef struct {
    Matrix matrix;
    void *tensor;
} Handle;

/* The handles of one operand, in the order in which they were made, and the one that was used last. */
typedef struct {
    Handle *handles;
    uint32_t count, room, last;
} Handles;

typedef struct Frame {
    struct Frame *next;
    Handles operands[];
} Frame;

/* Reads a product at `*at` and moves past it; returns what is wrong with it, or NULL. */
static const char *read_product(const char **at, const char *end, uint32_t values, const Library *library,
                                Product *product) {
    if ((size_t)(end - *at) < sizeof(ProductRecord)) return "the description is too short";
    memcpy(&product->record, *at, sizeof(ProductRecord));
    *at += sizeof(ProductRecord);
    const ProductRecord *record = &product->record;
    if (record->operation >= PRODUCTS || !library->create || !library->discard ||
        !library->products[record->operation])
        return "the description has a product that the library has not";
    int takes_sum = record->operation == ADDMM || record->operation == BADDBMM;
    if (record->operands != (takes_sum ? 4u : 3u)) return "the description has a product of too few operands";
    if ((size_t)(end - *at) < sizeof(Operand) * record->operands) return "the description is too short";
    product->operands = (const Operand *)*at;
    *at += sizeof(Operand) * record->operands;
    for (uint32_t i = 0; i < record->operands; i++) {
        const Operand *operand = &product->operands[i];
        if (operand->value >= values || operand->dims < 1 || operand->dims > MAX_DIMS || !operand->itemsize ||
            (operand->itemsize & (operand->itemsize - 1)))
            return "the description has an operand that is no matrix";
        if (operand->given >> 2 * MAX_DIMS) return "the description has a matrix of too many sizes";
        for (uint32_t place = 0; operand->given >> place; place++)
            if (operand->given >> place & 1 && (uint64_t)operand->sizes[place] >= values)
                return "the description has a matrix with a size that is no value";
    }
    return NULL;
}

/* Returns where a further handle of an operand goes: in the place of the oldest where there are enough; NULL without
   memory. */
static Handle *next_handle(Handles *self) {
    if (self->count < MAX_HANDLES) {
        if (self->count == self->room) {
            uint32_t room = self->room ? 2 * self->room : 1;
            Handle *handles = realloc(self->handles, sizeof(Handle) * room);
            if (handles == NULL) return NULL;
            self->handles = handles;
            self->room = room;
        }
        self->last = self->count++;
        self->handles[self->last].tensor = NULL;
    } else {
        self->last = (self->last + 1) % self->count;
    }
    return &self->handles[self->last];
}

/* Returns the library's tensor of a matrix, kept or made; NULL: refused. */
static void *tensor_of(const Library *library, const Operand *operand, Handles *self, const Matrix *matrix) {
    for (uint32_t i = 0, at = self->last; i < self->count; i++, at = at + 1 < self->count ? at + 1 : 0) {
        const Handle *handle = &self->handles[at];
        if (handle->tensor == NULL || memcmp(&handle->matrix, matrix, sizeof(Matrix))) continue;
        self->last = at;
        return handle->tensor;
    }
    Handle *handle = next_handle(self);
    if (handle == NULL) return NULL;
    if (handle->tensor != NULL) ((Discard)(uintptr_t)library->discard)(handle->tensor);
    handle->tensor = NULL;
    handle->matrix = *matrix;
    int32_t status = ((Create)(uintptr_t)library->create)(
        (void *)(uintptr_t)matrix->address, operand->dims, matrix->sizes, matrix->sizes + MAX_DIMS, 0, operand->dtype,
        library->device_type, library->device_index, &handle->tensor);
    if (status) handle->tensor = NULL;
    return handle->tensor;
}

/* Computes a product of matrices, the result being the first; 0: started, 1: refused, as Python's own call will say. */
static int multiply(const Library *library, const Product *product, Frame *frame, const Matrix *matrices) {
    const ProductRecord *record = &product->record;
    void *tensors[MAX_OPERANDS];
    for (uint32_t i = 0; i < record->operands; i++) {
        Handles *handles = &frame->operands[product->first + i];
        tensors[i] = tensor_of(library, &product->operands[i], handles, &matrices[i]);
        if (tensors[i] == NULL) return 1;
    }
    uintptr_t function = (uintptr_t)library->products[record->operation];
    int32_t status =
        record->operands == 3
            ? ((Multiply)function)(tensors[0], tensors[1], tensors[2])
            : ((MultiplyAdd)function)(tensors[0], tensors[1], tensors[2], tensors[3], record->beta, record->alpha);
    return status != 0;
}

/* Returns a frame that no other call uses; NULL where there is no memory. */
static Frame *take_frame(Frame **frames, uint32_t operands) {
    Frame *frame = *frames;
    if (frame != NULL) {
        *frames = frame->next;
        return frame;
    }
    size_t size = sizeof(Frame) + sizeof(Handles) * operands;
    frame = PyMem_Malloc(size);
    if (frame != NULL) memset(frame, 0, size);
    return frame;
}

static void give_frame(Frame **frames, Frame *frame) {
    frame->next = *frames;
    *frames = frame;
}

static void release_frames(const Library *library, Frame *frames, uint32_t operands) {
    while (frames != NULL) {
        Frame *next = frames->next;
        for (uint32_t i = 0; i < operands; i++) {
            Handles *kept = &frames->operands[i];
            for (uint32_t k = 0; k < kept->count; k++)
                if (kept->handles[k].tensor != NULL) ((Discard)(uintptr_t)library->discard)(kept->handles[k].tensor);
            free(kept->handles);
        }
        PyMem_Free(frames);
        frames = next;
    }
}

#endif
