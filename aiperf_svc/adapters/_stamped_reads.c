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

/* Of the process, not of a call: whoever reads holds the interpreter's lock, and takes the bytes out
 * before letting go of it. */
static char arrived[READ_SIZE];

static long long chunked, fragment_bytes, max_answer_bytes, head_state, flag_final, completed;

/* Attributes of connections and of records. */
#define NAMES(X) \
    X(bodies) X(buffer) X(bytes_in) X(bytes_out) X(connect_ns) X(due) X(entry) X(fd) X(flags) \
    X(fragments) X(framing) X(index) X(input_tokens) X(kept) X(last_seq) X(left) X(line) X(phase) \
    X(read_rows) X(reads) X(request_id) X(sent) X(start) X(state) X(tls) X(tls_ns) X(turn)
#define DECLARE(name) static PyObject *name_##name;
NAMES(DECLARE)

typedef struct {
    Py_ssize_t size;
    int64_t stamp; /* 0: none */
    int64_t now;
} Read;

/* Of protocol.records: READ and FRAGMENT. */
typedef struct __attribute__((packed)) {
    int64_t stamp, polled, read;
    uint32_t length;
} Row;
typedef struct __attribute__((packed)) {
    uint64_t request_id, seq, index;
    int64_t due, start, sent, ack, end, connect, tls;
    uint32_t bytes_out, body_offset, reads, body, message, entry;
    int32_t input_tokens;
    uint16_t part, turn, status, flags;
    uint8_t phase, outcome, error, framing;
} Fragment;

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

/* --- gathering -------------------------------------------------------------------------------- */

static int add(PyObject *gathered, const void *bytes, Py_ssize_t size) {
    Py_ssize_t before = PyByteArray_Size(gathered);
    if (PyByteArray_Resize(gathered, before + size) < 0)
        return -1;
    memcpy(PyByteArray_AsString(gathered) + before, bytes, size);
    return 0;
}

static int add_to(PyObject *object, PyObject *name, const void *bytes, Py_ssize_t size) {
    PyObject *gathered = PyObject_GetAttr(object, name);
    int failed = gathered == NULL || add(gathered, bytes, size) < 0;
    Py_XDECREF(gathered);
    return failed ? -1 : 0;
}

static Row row_of(const Read *read, int64_t polled) {
    return (Row){read->stamp, polled, read->now, (uint32_t)read->size};
}

/* --- a whole answer --------------------------------------------------------------------------- */

/* Of core.answer_layouts.Layout. */
typedef struct {
    int64_t status, framing, body_offset;
    const char *answer;
    const char *spans;
    Py_ssize_t span_count;
} Layout;

static int64_t item_of(PyObject *tuple, Py_ssize_t place) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    return item == NULL ? -1 : PyLong_AsLongLong(item);
}

static const char *bytes_of(PyObject *tuple, Py_ssize_t place, Py_ssize_t *size) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    char *bytes;
    return item == NULL || PyBytes_AsStringAndSize(item, &bytes, size) < 0 ? NULL : bytes;
}

/* 1: there is one for answers of that size; 0: there is none; -1: an exception is set. */
static int find_layout(PyObject *layouts, Py_ssize_t size, Layout *layout) {
    PyObject *key = PyLong_FromSsize_t(size);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(layouts, key);
    Py_XDECREF(key);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t answer_size, spans_size;
    layout->status = item_of(found, 2);
    layout->framing = item_of(found, 3);
    layout->body_offset = item_of(found, 4);
    layout->answer = bytes_of(found, 5, &answer_size);
    layout->spans = bytes_of(found, 6, &spans_size);
    if (PyErr_Occurred())
        return -1;
    layout->span_count = spans_size / 8;
    return answer_size == size;
}

static int is_laid_out(const Layout *layout) {
    for (Py_ssize_t i = 0; i < layout->span_count; i++) {
        uint32_t span[2];
        memcpy(span, layout->spans + 8 * i, 8);
        if (memcmp(arrived + span[0], layout->answer + span[0], span[1] - span[0]))
            return 0;
    }
    return 1;
}

/* Whether the connection waits for the beginning of an answer whose bytes nobody else needs. */
static int is_at_beginning(PyObject *connection) {
    return get_integer(connection, name_state) == head_state && is_none(connection, name_buffer) &&
           is_none(connection, name_kept) && is_none(connection, name_tls);
}

/* As RawRecords.add_whole. */
static PyObject *record_whole(PyObject *connection, PyObject *records, const Layout *layout,
                              const Read *read, int64_t polled) {
    int64_t seq = get_integer(records, name_last_seq) + 1;
    Fragment fragment = {
        .request_id = (uint64_t)get_integer(connection, name_request_id),
        .seq = (uint64_t)seq,
        .index = (uint64_t)get_integer(connection, name_index),
        .due = get_integer(connection, name_due),
        .start = get_integer(connection, name_start),
        .sent = get_integer(connection, name_sent),
        .ack = read->stamp,
        .end = read->stamp,
        .connect = get_integer(connection, name_connect_ns),
        .tls = get_integer(connection, name_tls_ns),
        .bytes_out = (uint32_t)get_integer(connection, name_bytes_out),
        .body_offset = (uint32_t)layout->body_offset,
        .reads = 1,
        .body = (uint32_t)read->size,
        .entry = (uint32_t)get_integer(connection, name_entry),
        .input_tokens = (int32_t)get_integer(connection, name_input_tokens),
        .turn = (uint16_t)get_integer(connection, name_turn),
        .status = (uint16_t)layout->status,
        .flags = (uint16_t)(get_integer(connection, name_flags) | flag_final),
        .phase = (uint8_t)get_integer(connection, name_phase),
        .outcome = (uint8_t)completed,
        .framing = (uint8_t)layout->framing,
    };
    Row row = row_of(read, polled);
    if (PyErr_Occurred() || set_integer(records, name_last_seq, seq) < 0 ||
        add_to(records, name_fragments, &fragment, sizeof fragment) < 0 ||
        add_to(records, name_reads, &row, sizeof row) < 0 ||
        add_to(records, name_bodies, arrived, read->size) < 0)
        return NULL;
    return PyLong_FromLongLong(read->stamp);
}

static PyObject *take_first(PyObject *module, PyObject *arguments) {
    PyObject *connection, *layouts, *records;
    long long polled;
    Read read;
    Layout layout;
    if (!PyArg_ParseTuple(
            arguments, "OLO!O", &connection, &polled, &PyDict_Type, &layouts, &records))
        return NULL;
    int got = read_socket(connection, &read);
    if (got < 0)
        return NULL;
    if (got == 0)
        Py_RETURN_NONE;
    int is_known = read.stamp ? find_layout(layouts, read.size, &layout) : 0;
    if (is_known > 0)
        is_known = is_laid_out(&layout) && is_at_beginning(connection);
    if (PyErr_Occurred())
        return NULL;
    return is_known ? record_whole(connection, records, &layout, &read, polled)
                    : handed_back(&read);
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
    Row row = row_of(read, polled);
    if (add(buffer, arrived, read->size) < 0 || add(rows, &row, sizeof row) < 0 ||
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

static PyObject *set_constants(PyObject *module, PyObject *arguments) {
    long long fragment_size, row_size;
    if (!PyArg_ParseTuple(arguments, "LLLLLLLL", &chunked, &fragment_bytes, &max_answer_bytes,
                          &head_state, &fragment_size, &row_size, &flag_final, &completed))
        return NULL;
    if (fragment_size != sizeof(Fragment) || row_size != sizeof(Row)) {
        PyErr_SetString(PyExc_ImportError, "_stamped_reads was compiled for other rows: `make`");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"take_first", take_first, METH_VARARGS, NULL},
    {"take_more", take_more, METH_VARARGS, NULL},
    {"set_constants", set_constants, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stamped_reads", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stamped_reads(void) {
#define INTERN(name) \
    if ((name_##name = PyUnicode_InternFromString(#name)) == NULL) \
        return NULL;
    NAMES(INTERN)
    return PyModule_Create(&definition);
}
