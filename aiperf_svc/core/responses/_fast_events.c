/* Compiled version of `fast_events` for events that are in the cache.
 *
 * `fast_events` and `events` are the reference and document the behaviour. This stops at the first
 * event that is unknown or has an unusual frame. Built against the stable ABI, so one library works
 * with every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "_chunk_size.h"

static const char END[] = "\n\n\r\n";
#define END_SIZE ((Py_ssize_t)sizeof END - 1)

typedef struct {
    const char *data, *between; /* `between` begins with the end of a size line */
    Py_ssize_t stop, between_size;
    PyObject *known, *texts;
    const int64_t *ends, *stamps;
    Py_ssize_t reads;
} Source;

/* --- one event -------------------------------------------------------------------------------- */

/* Return the offset after the chunk at `at`, and in *rest the offset after `between`; -1 unless the
 * chunk is one event with that beginning. */
static Py_ssize_t plain_chunk(const Source *source, Py_ssize_t at, Py_ssize_t *rest) {
    const char *data = source->data;
    Py_ssize_t size = chunk_size(data, &at, source->stop);
    Py_ssize_t after = at + 2 + size + 2;
    if (size <= 0 || size < source->between_size || after > source->stop ||
        memcmp(data + at, source->between, source->between_size) ||
        memcmp(data + after - END_SIZE, END, END_SIZE))
        return -1;
    *rest = at + source->between_size;
    return after;
}

/* Return the cached value of these bytes, a borrowed reference; NULL if there is none, or with an
 * exception set. */
static PyObject *text_of(const Source *source, Py_ssize_t begin, Py_ssize_t end) {
    PyObject *key = PyBytes_FromStringAndSize(source->data + begin, end - begin);
    if (key == NULL)
        return NULL;
    PyObject *text = PyDict_GetItemWithError(source->known, key);
    Py_DECREF(key);
    return text;
}

/* --- all events ------------------------------------------------------------------------------- */

/* Return the number of events, and write their gaps to `gaps`; move *at and *read, and add the bytes
 * of their texts to *size. The event before the first came at `last`. -1: an exception is set. */
static Py_ssize_t take(const Source *source, Py_ssize_t *at, Py_ssize_t *read, int64_t last,
                       uint32_t *gaps, Py_ssize_t *size) {
    Py_ssize_t rest, after, its_read = *read, count = 0;
    while ((after = plain_chunk(source, *at, &rest)) >= 0) {
        PyObject *text = text_of(source, rest, after - END_SIZE);
        if (text == NULL)
            break;
        while (its_read < source->reads && source->ends[its_read] < after - 2)
            ++its_read;
        if (its_read >= source->reads) {
            PyErr_SetString(PyExc_IndexError, "an event after the last read");
            return -1;
        }
        /* As an unsigned number, a negative gap is too long as well. */
        uint64_t gap = (uint64_t)source->stamps[its_read] - (uint64_t)last;
        if (gap > UINT32_MAX)
            break;
        Py_ssize_t text_size;
        /* Encoded once: the text object caches it. */
        if (PyUnicode_AsUTF8AndSize(text, &text_size) == NULL)
            return -1;
        if (source->texts != Py_None && PyList_Append(source->texts, text) < 0)
            return -1;
        *size += text_size;
        gaps[count++] = (uint32_t)gap;
        last = source->stamps[its_read];
        *at = after;
        *read = its_read;
    }
    return PyErr_Occurred() ? -1 : count;
}

static PyObject *take_all(const Source *source, Py_ssize_t at, Py_ssize_t read, int64_t last) {
    /* No event is shorter than the bytes between two events. */
    Py_ssize_t room = (source->stop - at) / (source->between_size + END_SIZE) + 1;
    uint32_t *gaps = PyMem_Malloc(room * sizeof *gaps);
    if (gaps == NULL)
        return PyErr_NoMemory();
    Py_ssize_t size = 0, count = take(source, &at, &read, last, gaps, &size);
    PyObject *taken = NULL;
    if (count >= 0)
        taken = Py_BuildValue("(nny#n)", at, read, gaps, count * (Py_ssize_t)sizeof *gaps, size);
    PyMem_Free(gaps);
    return taken;
}

static PyObject *take_tokens(PyObject *module, PyObject *arguments) {
    Source source;
    Py_buffer ends, stamps;
    Py_ssize_t size, at, read;
    long long last;
    PyObject *taken = NULL;
    if (!PyArg_ParseTuple(arguments, "y#nny#O!y*y*nLO", &source.data, &size, &at, &source.stop,
                          &source.between, &source.between_size, &PyDict_Type, &source.known, &ends,
                          &stamps, &read, &last, &source.texts))
        return NULL;
    source.ends = ends.buf;
    source.stamps = stamps.buf;
    source.reads = ends.len / (Py_ssize_t)sizeof *source.ends;
    if (at < 0 || at > source.stop || source.stop > size || read < 0 || ends.len != stamps.len)
        PyErr_SetString(PyExc_IndexError, "outside of the data");
    else if (source.texts != Py_None && !PyList_Check(source.texts))
        PyErr_SetString(PyExc_TypeError, "texts are a list or None");
    else
        taken = take_all(&source, at, read, last);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&stamps);
    return taken;
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"take_tokens", take_tokens, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fast_events", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast_events(void) {
    return PyModule_Create(&definition);
}
