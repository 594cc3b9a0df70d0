/* What `known_events` does for the events that a record processor has met before, compiled.
 *
 * What is meant is said there, and by `answer_events`, whose sources remain the reference: at
 * the first event that is not known, or not framed as nearly all are, this stops. Built against the
 * stable ABI, so that one library serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "_chunk_size.h"

static const char END[] = "\n\n\r\n";
#define END_SIZE ((Py_ssize_t)sizeof END - 1)

static PyObject *name_frombytes, *name_is_plain;

static int append_pair(PyObject *list, PyObject *first, Py_ssize_t second) {
    PyObject *pair = Py_BuildValue("(On)", first, second);
    if (pair == NULL)
        return -1;
    int failed = PyList_Append(list, pair);
    Py_DECREF(pair);
    return failed;
}

/* --- from bytes to events --------------------------------------------------------------------- */

/* Offset after the chunk at `at`, and in *rest where it goes on after what is `common` to all, which
 * begins with the end of its size's line; -1 where it is not one event with that beginning. */
static Py_ssize_t plain_chunk(const char *data, Py_ssize_t at, Py_ssize_t stop, const char *common,
                              Py_ssize_t common_size, Py_ssize_t *rest) {
    Py_ssize_t size = chunk_size(data, &at, stop);
    Py_ssize_t after = at + 2 + size + 2;
    if (size <= 0 || size < common_size || after > stop || memcmp(data + at, common, common_size) ||
        memcmp(data + after - END_SIZE, END, END_SIZE))
        return -1;
    *rest = at + common_size;
    return after;
}

static PyObject *take_known(PyObject *module, PyObject *arguments) {
    const char *data, *common;
    Py_ssize_t size, common_size, at, stop;
    PyObject *known, *found;
    if (!PyArg_ParseTuple(arguments, "y#nny#O!O!", &data, &size, &at, &stop, &common, &common_size,
                          &PyDict_Type, &known, &PyList_Type, &found))
        return NULL;
    if (at < 0 || stop > size) {
        PyErr_SetString(PyExc_IndexError, "outside of the data");
        return NULL;
    }
    Py_ssize_t rest, after;
    while ((after = plain_chunk(data, at, stop, common, common_size, &rest)) >= 0) {
        PyObject *key = PyBytes_FromStringAndSize(data + rest, after - END_SIZE - rest);
        if (key == NULL)
            return NULL;
        PyObject *delta = PyDict_GetItemWithError(known, key);
        Py_DECREF(key);
        if (delta == NULL) {
            if (PyErr_Occurred())
                return NULL;
            break;
        }
        at = after;
        if (append_pair(found, delta, at - 2) < 0)
            return NULL;
    }
    return PyLong_FromSsize_t(at);
}

/* --- from events to times --------------------------------------------------------------------- */

/* 1: plain; 0: not; -1: an exception is set. */
static int is_plain(PyObject *delta) {
    PyObject *value = PyObject_GetAttr(delta, name_is_plain);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_True;
}

static int64_t integer_at(PyObject *list, Py_ssize_t place) {
    PyObject *value = PyList_GetItem(list, place);
    return value == NULL ? -1 : PyLong_AsLongLong(value);
}

static PyObject *take_plain(PyObject *module, PyObject *arguments) {
    PyObject *events, *ends, *stamps, *times;
    Py_ssize_t place, read, last_end;
    if (!PyArg_ParseTuple(arguments, "O!nO!O!nnO", &PyList_Type, &events, &place, &PyList_Type, &ends,
                          &PyList_Type, &stamps, &read, &last_end, &times))
        return NULL;
    Py_ssize_t count = PyList_Size(events), first = place;
    PyObject *gathered = PyBytes_FromStringAndSize(NULL, (count - place) * 8);
    if (gathered == NULL)
        return NULL;
    char *next = PyBytes_AsString(gathered);
    for (; place < count; place++) {
        PyObject *pair = PyList_GetItem(events, place);
        PyObject *delta = PyTuple_GetItem(pair, 0), *value = PyTuple_GetItem(pair, 1);
        int plain = delta == NULL || value == NULL ? -1 : is_plain(delta);
        if (plain == 0)
            break;
        Py_ssize_t end = plain < 0 ? -1 : PyLong_AsSsize_t(value);
        int64_t read_end;
        while (end >= 0 && (read_end = integer_at(ends, read)) < end && !PyErr_Occurred())
            read++;
        int64_t stamp = PyErr_Occurred() ? -1 : integer_at(stamps, read);
        if (PyErr_Occurred()) {
            Py_DECREF(gathered);
            return NULL;
        }
        memcpy(next, &stamp, 8);
        next += 8;
        last_end = end;
    }
    if (place > first) {
        PyObject *view = PyMemoryView_FromMemory(
            PyBytes_AsString(gathered), (place - first) * 8, PyBUF_READ);
        PyObject *done =
            view == NULL ? NULL : PyObject_CallMethodObjArgs(times, name_frombytes, view, NULL);
        Py_XDECREF(view);
        Py_XDECREF(done);
        if (done == NULL) {
            Py_DECREF(gathered);
            return NULL;
        }
    }
    Py_DECREF(gathered);
    return Py_BuildValue("(nnn)", place, read, last_end);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"take_known", take_known, METH_VARARGS, NULL},
    {"take_plain", take_plain, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_known_events", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__known_events(void) {
    if ((name_frombytes = PyUnicode_InternFromString("frombytes")) == NULL ||
        (name_is_plain = PyUnicode_InternFromString("is_plain")) == NULL)
        return NULL;
    return PyModule_Create(&definition);
}
