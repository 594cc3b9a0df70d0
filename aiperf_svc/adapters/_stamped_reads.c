/* What `stamped_reads` does for every read of a socket, compiled.
 *
 * What is meant is said there, and by the inference client, whose sources remain the reference: all
 * but the plain case is handed back to it. Built against the stable ABI, so that one library serves
 * every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "../core/_chunk_size.h"

#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS 35
#endif
#define READ_SIZE 65536
#define ROW_SIZE 28 /* of protocol.records.READ */

/* Of the process, not of a call: whoever reads holds the interpreter's lock, and takes the bytes out
 * before letting go of it. */
static char arrived[READ_SIZE];

static long long chunked, fragment_bytes, max_answer_bytes;
static PyObject *name_buffer, *name_bytes_in, *name_fd, *name_framing, *name_kept, *name_left,
    *name_line, *name_read_rows, *name_tls;

typedef struct {
    Py_ssize_t size;
    int64_t stamp; /* 0: none */
    int64_t now;
} Read;

/* --- attributes of a connection --------------------------------------------------------------- */

/* -1 with an exception set when there is none. */
static int64_t get_integer(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int64_t number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

static int set_integer(PyObject *object, PyObject *name, int64_t number) {
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL)
        return -1;
    int failed = PyObject_SetAttr(object, name, value);
    Py_DECREF(value);
    return failed;
}

static int is_none(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    Py_XDECREF(value);
    return value == Py_None;
}

/* Whether the connection waits for more of a chunk, or for the line of the next one, in a body whose
 * bytes nobody else needs. */
static int is_plain(PyObject *connection) {
    PyObject *line = PyObject_GetAttr(connection, name_line);
    int is_between_lines = line != NULL && PyBytes_Check(line) && PyBytes_Size(line) == 0;
    Py_XDECREF(line);
    return is_between_lines && is_none(connection, name_kept) && is_none(connection, name_tls) &&
           get_integer(connection, name_framing) == chunked;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int64_t nanoseconds(const struct timespec *time) {
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

/* 1: bytes have arrived; 0: there are none; -1: an exception is set. */
static int read_socket(PyObject *connection, Read *read) {
    int fd = (int)get_integer(connection, name_fd);
    if (fd == -1 && PyErr_Occurred())
        return -1;
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {arrived, READ_SIZE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    do {
        read->size = recvmsg(fd, &message, MSG_DONTWAIT);
    } while (read->size < 0 && errno == EINTR);
    if (read->size < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    read->now = nanoseconds(&time);
    read->stamp = 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first != NULL && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_TIMESTAMPNS) {
        memcpy(&time, CMSG_DATA(first), sizeof time);
        read->stamp = nanoseconds(&time);
    }
    return 1;
}

static PyObject *handed_back(const Read *read) {
    return Py_BuildValue(
        "(y#LL)", arrived, read->size, (long long)read->stamp, (long long)read->now);
}

static PyObject *receive(PyObject *module, PyObject *connection) {
    Read read;
    int got = read_socket(connection, &read);
    if (got < 0)
        return NULL;
    if (got == 0)
        Py_RETURN_NONE;
    return handed_back(&read);
}

/* --- in the middle of an answer --------------------------------------------------------------- */

/* Follows the chunks of a body through `size` new bytes, of which the first `left` belong to the
 * chunk that has begun. What is then left of the last one; -1 where it is not that plain: the body
 * ends here, a line of the framing is cut, or has more to it than a size. */
static int64_t left_after(int64_t left, Py_ssize_t size) {
    Py_ssize_t at = left;
    while (at < size) {
        Py_ssize_t chunk = chunk_size(arrived, &at, size);
        if (chunk <= 0 || at + 2 > size || arrived[at] != '\r' || arrived[at + 1] != '\n')
            return -1;
        at += 2 + chunk + 2;
    }
    return at - size;
}

static int add(PyObject *gathered, const void *bytes, Py_ssize_t size) {
    Py_ssize_t before = PyByteArray_Size(gathered);
    if (PyByteArray_Resize(gathered, before + size) < 0)
        return -1;
    memcpy(PyByteArray_AsString(gathered) + before, bytes, size);
    return 0;
}

static int add_row(PyObject *rows, const Read *read, int64_t polled) {
    char row[ROW_SIZE];
    uint32_t length = (uint32_t)read->size;
    memcpy(row, &read->stamp, 8);
    memcpy(row + 8, &polled, 8);
    memcpy(row + 16, &read->now, 8);
    memcpy(row + 24, &length, 4);
    return add(rows, row, ROW_SIZE);
}

static PyObject *take(PyObject *connection, PyObject *buffer, PyObject *rows, const Read *read,
                      int64_t polled) {
    int64_t left = get_integer(connection, name_left);
    int64_t bytes_in = get_integer(connection, name_bytes_in) + read->size;
    int64_t rest = -1;
    if (read->size && read->stamp && left >= 0 && bytes_in <= max_answer_bytes &&
        PyByteArray_Check(buffer) && PyByteArray_Check(rows) && is_plain(connection))
        rest = left_after(left, read->size);
    if (PyErr_Occurred())
        return NULL;
    if (rest < 0)
        return handed_back(read);
    if (add(buffer, arrived, read->size) < 0 || add_row(rows, read, polled) < 0 ||
        set_integer(connection, name_left, rest) < 0 ||
        set_integer(connection, name_bytes_in, bytes_in) < 0)
        return NULL;
    PyObject *result = PyByteArray_Size(buffer) >= fragment_bytes ? Py_True : Py_None;
    Py_INCREF(result);
    return result;
}

static PyObject *take_more(PyObject *module, PyObject *arguments) {
    PyObject *connection, *result = NULL;
    long long polled;
    Read read;
    if (!PyArg_ParseTuple(arguments, "OL", &connection, &polled))
        return NULL;
    int got = read_socket(connection, &read);
    if (got < 0)
        return NULL;
    if (got == 0)
        Py_RETURN_NONE;
    PyObject *buffer = PyObject_GetAttr(connection, name_buffer);
    PyObject *rows = PyObject_GetAttr(connection, name_read_rows);
    if (buffer != NULL && rows != NULL)
        result = take(connection, buffer, rows, &read, polled);
    Py_XDECREF(buffer);
    Py_XDECREF(rows);
    return result;
}

/* --- the module ------------------------------------------------------------------------------- */

static PyObject *set_limits(PyObject *module, PyObject *arguments) {
    if (!PyArg_ParseTuple(arguments, "LLL", &chunked, &fragment_bytes, &max_answer_bytes))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"receive", receive, METH_O, NULL},
    {"take_more", take_more, METH_VARARGS, NULL},
    {"set_limits", set_limits, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stamped_reads", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stamped_reads(void) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_buffer, "buffer"}, {&name_bytes_in, "bytes_in"},   {&name_fd, "fd"},
        {&name_framing, "framing"}, {&name_kept, "kept"},         {&name_left, "left"},
        {&name_line, "line"},     {&name_read_rows, "read_rows"}, {&name_tls, "tls"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
