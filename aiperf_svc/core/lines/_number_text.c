/* Compiled version of `number_text.filled` for lines full of numbers.
 *
 * The interpreted function is the reference and documents the behaviour; both return identical
 * bytes. Built against the stable ABI, so one library works with every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DECIMALS 6
#define SCALE 1000000
#define WIDEST 32 /* a sign, 20 digits, a point, decimals */

typedef struct {
    const char *before; /* the preceding piece of the template */
    Py_ssize_t before_size;
    Py_buffer values;
    char kind;
} Column;

/* --- one number ------------------------------------------------------------------------------- */

/* Write at least `width` digits; return the end. */
static char *put_digits(char *at, uint64_t number, int width) {
    char digits[24];
    int first = sizeof digits;
    while (number || width > 0) {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
        width--;
    }
    memcpy(at, digits + first, sizeof digits - first);
    return at + (sizeof digits - first);
}

static char *put_sign(char *at, int is_negative) {
    if (is_negative)
        *at++ = '-';
    return at;
}

static char *put_integer(char *at, int64_t value, int width) {
    at = put_sign(at, value < 0);
    return put_digits(at, value < 0 ? -(uint64_t)value : (uint64_t)value, width);
}

static char *put_decimal(char *at, double value) {
    uint64_t scaled = (uint64_t)llrint(fabs(value) * SCALE);
    at = put_sign(at, value < 0);
    at = put_digits(at, scaled / SCALE, 1);
    *at++ = '.';
    char *end = put_digits(at, scaled % SCALE, DECIMALS);
    while (end > at + 1 && end[-1] == '0')
        end--;
    return end;
}

static char *put(char *at, const Column *column, Py_ssize_t row) {
    const char *values = column->values.buf;
    int64_t integer;
    double decimal;
    switch (column->kind) {
    case 'd':
        memcpy(&decimal, values + 8 * row, 8);
        return put_decimal(at, decimal);
    case 'p':
        memcpy(&integer, values + 8 * row, 8);
        return put_integer(at, integer, 6);
    default:
        memcpy(&integer, values + 8 * row, 8);
        return put_integer(at, integer, 1);
    }
}

/* --- all lines -------------------------------------------------------------------------------- */

static PyObject *fill(const Column *columns, Py_ssize_t width, const char *last,
                      Py_ssize_t last_size, Py_ssize_t count) {
    Py_ssize_t longest = last_size;
    for (Py_ssize_t i = 0; i < width; i++)
        longest += columns[i].before_size + WIDEST;
    char *text = PyMem_Malloc(longest * count + 1), *at = text;
    if (text == NULL)
        return PyErr_NoMemory();
    /* Another thread can write and hash meanwhile. */
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < count; row++) {
        for (Py_ssize_t i = 0; i < width; i++) {
            memcpy(at, columns[i].before, columns[i].before_size);
            at = put(at + columns[i].before_size, &columns[i], row);
        }
        memcpy(at, last, last_size);
        at += last_size;
    }
    Py_END_ALLOW_THREADS
    PyObject *result = PyBytes_FromStringAndSize(text, at - text);
    PyMem_Free(text);
    return result;
}

/* Return 0 if all arguments fit together; -1 with an exception set. */
static int take_columns(Column *columns, Py_ssize_t *taken, Py_ssize_t width, PyObject *pieces,
                        const char *kinds, PyObject *arrays, Py_ssize_t count) {
    for (; *taken < width; ++*taken) {
        Column *column = &columns[*taken];
        char *before;
        if (PyBytes_AsStringAndSize(
                PyList_GetItem(pieces, *taken), &before, &column->before_size) < 0 ||
            PyObject_GetBuffer(PyList_GetItem(arrays, *taken), &column->values, PyBUF_SIMPLE) < 0)
            return -1;
        column->before = before;
        column->kind = kinds[*taken];
        if (column->values.len != 8 * count) {
            ++*taken;
            PyErr_SetString(PyExc_ValueError, "a column is not of so many numbers");
            return -1;
        }
    }
    return 0;
}

static PyObject *filled(PyObject *module, PyObject *arguments) {
    PyObject *pieces, *arrays, *result = NULL;
    const char *kinds;
    Py_ssize_t width, count, taken = 0, last_size;
    char *last;
    if (!PyArg_ParseTuple(arguments, "O!y#O!n", &PyList_Type, &pieces, &kinds, &width, &PyList_Type,
                          &arrays, &count))
        return NULL;
    if (PyList_Size(arrays) != width || PyList_Size(pieces) != width + 1 || count < 0) {
        PyErr_SetString(PyExc_ValueError, "not one kind and one array between two pieces each");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(PyList_GetItem(pieces, width), &last, &last_size) < 0)
        return NULL;
    Column *columns = PyMem_Calloc(width + 1, sizeof *columns);
    if (columns == NULL)
        return PyErr_NoMemory();
    if (take_columns(columns, &taken, width, pieces, kinds, arrays, count) == 0)
        result = fill(columns, width, last, last_size, count);
    while (taken > 0)
        PyBuffer_Release(&columns[--taken].values);
    PyMem_Free(columns);
    return result;
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"filled", filled, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_number_text", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__number_text(void) {
    return PyModule_Create(&definition);
}
