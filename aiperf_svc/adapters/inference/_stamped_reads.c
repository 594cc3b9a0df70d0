/* The steps of `stamped_reads` for every request and every read of a socket, compiled.
 *
 * The Python sources of `stamped_reads` and of the inference client document these steps and remain the reference.
 * Everything but the common case is handed back to them. Built against the stable ABI, so one library serves every
 * Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "../../core/responses/_chunk_size.h"

#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS 35
#endif
#define READ_SIZE 65536

/* One buffer per process instead of one per call: a reader holds the GIL, and copies the bytes out before it releases
 * the GIL. */
static char arrived[READ_SIZE];

/* Constants of the Python sources, under their names in `stamped_reads`. */
#define CONSTANTS(X) \
    X(CHUNKED) X(FRAGMENT_BYTES) X(FIRST_PARTS) X(FIRST_READS_BYTES) X(MAX_RESPONSE_BYTES) \
    X(IDLE) X(HEAD) X(BODY) X(FINAL) X(REUSED) X(COMPLETED) X(INDEX_BASE) X(WAS_READ) X(FAILED) \
    X(HAS_EVENT) X(IS_OTHER) X(IN_MIDDLE) X(HAS_ENDED) X(IS_DONE) X(STREAMED)
#define CONSTANT(name) static long long name;
CONSTANTS(CONSTANT)

typedef struct {
    Py_ssize_t size;
    int64_t stamp; /* 0: none */
    int64_t now;
} Read;

/* Rows of protocol.records, with the names and offsets of their columns. */
#define READ_COLUMNS(X) \
    X(int64_t, stamp_wall_ns) X(int64_t, polled_wall_ns) X(int64_t, read_wall_ns) \
    X(uint32_t, length)
#define FRAGMENT_COLUMNS(X) \
    X(uint64_t, request_id) X(uint64_t, seq) X(uint64_t, index) X(int64_t, due_wall_ns) \
    X(int64_t, write_wall_ns) X(int64_t, sent_wall_ns) X(int64_t, ack_wall_ns) \
    X(int64_t, end_wall_ns) X(int64_t, connect_ns) X(int64_t, tls_ns) X(uint32_t, bytes_out) \
    X(uint32_t, body_offset) X(uint32_t, reads) X(uint32_t, body) X(uint32_t, message) \
    X(uint32_t, entry) X(int32_t, input_tokens) X(uint16_t, part) X(uint16_t, turn) \
    X(uint16_t, status) X(uint16_t, flags) X(uint8_t, phase) X(uint8_t, outcome) \
    X(uint8_t, error) X(uint8_t, framing) X(int32_t, requested_tokens)
#define COLUMN(type, name) type name;
typedef struct __attribute__((packed)) {
    READ_COLUMNS(COLUMN)
} Row;
typedef struct __attribute__((packed)) {
    FRAGMENT_COLUMNS(COLUMN)
} Fragment;

/* Named tuples of adapters.inference.request and core.responses.layouts, with the names and positions of their
 * fields. */
#define PREPARED_TURN_ITEMS(X) \
    X(TURN_, before) X(TURN_, after) X(TURN_, entry) X(TURN_, turn) X(TURN_, input_tokens) \
    X(TURN_, requested_tokens)
#define LAYOUT_ITEMS(X) \
    X(LAYOUT_, pick) X(LAYOUT_, picked) X(LAYOUT_, status) X(LAYOUT_, framing) \
    X(LAYOUT_, body_offset) X(LAYOUT_, response) X(LAYOUT_, spans)
#define ITEM(prefix, name) prefix##name,
enum { PREPARED_TURN_ITEMS(ITEM) TURN_SIZE };
enum { LAYOUT_ITEMS(ITEM) LAYOUT_SIZE };

/* --- the fields of requests and connections --------------------------------------------------- */

#define REQUEST_INTEGERS(X) \
    X(ack_wall_ns) X(body_offset) X(bytes_in) X(bytes_out) X(connect_ns) X(due_wall_ns) \
    X(end_wall_ns) X(entry) X(flags) X(framing) X(index) X(input_tokens) X(moves) X(part) X(phase) X(request_id) \
    X(requested_tokens) X(sent_wall_ns) X(write_wall_ns) X(started_mono_ns) X(status) X(tls_ns) \
    X(turn)
#define REQUEST_OBJECTS(X) X(buffer) X(kept) X(payload) X(read_rows) X(session)
#define CONNECTION_INTEGERS(X) \
    X(connect_ns) X(fd) X(left) X(opened_mono_ns) X(requests) X(state) X(tls_ns)
#define CONNECTION_OBJECTS(X) X(line) X(request) X(tls) X(unsent)
#define CONNECTION_FLAGS(X) X(in_trailers) X(is_used) X(keep_alive)

#define INTEGER(name) long long name;
#define OBJECT(name) PyObject *name;
#define FLAG(name) char name;
typedef struct {
    PyObject_HEAD
    REQUEST_INTEGERS(INTEGER)
    REQUEST_OBJECTS(OBJECT)
} Request;
typedef struct {
    PyObject_HEAD
    CONNECTION_INTEGERS(INTEGER)
    CONNECTION_OBJECTS(OBJECT)
    CONNECTION_FLAGS(FLAG)
} Connection;

static PyMemberDef request_members[] = {
#define REQUEST_INTEGER(name) {#name, T_LONGLONG, offsetof(Request, name), 0, NULL},
    REQUEST_INTEGERS(REQUEST_INTEGER)
#define REQUEST_OBJECT(name) {#name, T_OBJECT, offsetof(Request, name), 0, NULL},
    REQUEST_OBJECTS(REQUEST_OBJECT)
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef connection_members[] = {
#define CONNECTION_INTEGER(name) {#name, T_LONGLONG, offsetof(Connection, name), 0, NULL},
    CONNECTION_INTEGERS(CONNECTION_INTEGER)
#define CONNECTION_OBJECT(name) {#name, T_OBJECT, offsetof(Connection, name), 0, NULL},
    CONNECTION_OBJECTS(CONNECTION_OBJECT)
#define CONNECTION_FLAG(name) {#name, T_BOOL, offsetof(Connection, name), 0, NULL},
    CONNECTION_FLAGS(CONNECTION_FLAG)
    {NULL, 0, 0, 0, NULL},
};

/* None of their objects refers back to a request or a connection, so they need no garbage collection. */
static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void free_request(PyObject *self) {
    Request *object = (Request *)self;
#define RELEASE(name) Py_XDECREF(object->name);
    REQUEST_OBJECTS(RELEASE)
    free_object(self);
}

static void free_connection(PyObject *self) {
    Connection *object = (Connection *)self;
    CONNECTION_OBJECTS(RELEASE)
    free_object(self);
}

static PyTypeObject *request_type, *connection_type;

/* NULL with an exception set if it is not a connection. */
static Connection *connection_of(PyObject *object) {
    if (PyObject_TypeCheck(object, connection_type))
        return (Connection *)object;
    PyErr_SetString(PyExc_TypeError, "not a connection");
    return NULL;
}

/* The request on a connection; NULL if it has none. */
static Request *request_of(const Connection *conn) {
    PyObject *object = conn->request;
    return object != NULL && PyObject_TypeCheck(object, request_type) ? (Request *)object : NULL;
}

static int is_none(const PyObject *object) {
    return object == NULL || object == Py_None;
}

static void set_object(PyObject **field, PyObject *value) {
    PyObject *before = *field;
    Py_INCREF(value);
    *field = value;
    Py_XDECREF(before);
}

static int has_arguments(Py_ssize_t count, Py_ssize_t expected) {
    if (count != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", expected, count);
    return count == expected;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int64_t nanoseconds(const struct timespec *time) {
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static int64_t now_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return nanoseconds(&time);
}

/* The number of bytes that the kernel did not accept. */
static PyObject *write_payload(Connection *conn, Request *request) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(request->payload, &bytes, &size) < 0)
        return NULL;
    conn->state = HEAD;
    conn->requests++;
    if (conn->is_used) {
        request->flags |= REUSED;
    } else {
        request->connect_ns = conn->connect_ns;
        request->tls_ns = conn->tls_ns;
    }
    request->started_mono_ns = now_of(CLOCK_MONOTONIC);
    request->write_wall_ns = now_of(CLOCK_REALTIME);
    ssize_t sent;
    do {
        sent = send((int)conn->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return PyErr_SetFromErrno(PyExc_OSError);
        sent = 0;
    }
    request->sent_wall_ns = now_of(CLOCK_REALTIME);
    return PyLong_FromSsize_t(size - sent);
}

static PyObject *write_request(PyObject *module, PyObject *object) {
    Connection *conn = connection_of(object);
    Request *request = conn == NULL ? NULL : request_of(conn);
    if (request != NULL && request->payload != NULL)
        return write_payload(conn, request);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a connection without a request");
    return NULL;
}

/* The items of a tuple. */
static int64_t number_at(PyObject *tuple, Py_ssize_t place) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    return item == NULL ? -1 : PyLong_AsLongLong(item);
}

static const char *bytes_at(PyObject *tuple, Py_ssize_t place, Py_ssize_t *size) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    char *bytes;
    return item == NULL || PyBytes_AsStringAndSize(item, &bytes, size) < 0 ? NULL : bytes;
}

/* The bytes of a prepared turn around its request's id, which ends with a decimal number. */
static PyObject *joined(PyObject *turn, const char *id, Py_ssize_t id_size, uint64_t number) {
    Py_ssize_t before_size, after_size;
    const char *before = bytes_at(turn, TURN_before, &before_size);
    const char *after = before == NULL ? NULL : bytes_at(turn, TURN_after, &after_size);
    if (after == NULL)
        return NULL;
    char digits[20], *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + number % 10);
    } while (number /= 10);
    Py_ssize_t digit_count = digits + sizeof digits - first;
    PyObject *whole =
        PyBytes_FromStringAndSize(NULL, before_size + id_size + digit_count + after_size);
    if (whole == NULL)
        return NULL;
    char *at = PyBytes_AsString(whole);
    memcpy(at, before, before_size);
    memcpy(at += before_size, id, id_size);
    memcpy(at += id_size, first, digit_count);
    memcpy(at + digit_count, after, after_size);
    return whole;
}

/* Like `RequestFields.__init__` in Python. */
static PyObject *make_request(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    Py_ssize_t count = PyTuple_Size(arguments), id_size;
    if (named != NULL && PyDict_Size(named) > 0) {
        PyErr_SetString(PyExc_TypeError, "a request takes no arguments by name");
        return NULL;
    }
    if (count < 6 || count > 8) {
        PyErr_SetString(PyExc_TypeError, "a request takes 6 to 8 arguments");
        return NULL;
    }
    /* One by one, because PyArg_ParseTuple would take as long as everything else. */
    PyObject *turn = PyTuple_GetItem(arguments, 0);
    if (!PyTuple_Check(turn)) {
        PyErr_SetString(PyExc_TypeError, "not a prepared turn");
        return NULL;
    }
    const char *id = bytes_at(arguments, 1, &id_size);
    int64_t index = id == NULL ? -1 : number_at(arguments, 3);
    PyObject *payload =
        PyErr_Occurred() ? NULL : joined(turn, id, id_size, (uint64_t)(INDEX_BASE + index));
    if (payload == NULL)
        return NULL;
    Request *request = (Request *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (request == NULL) {
        Py_DECREF(payload);
        return NULL;
    }
    request->payload = payload;
    request->bytes_out = PyBytes_Size(payload);
    request->phase = number_at(arguments, 2);
    request->index = index;
    request->due_wall_ns = number_at(arguments, 4);
    request->flags = number_at(arguments, 5);
    request->entry = number_at(turn, TURN_entry);
    request->turn = number_at(turn, TURN_turn);
    request->input_tokens = number_at(turn, TURN_input_tokens);
    request->requested_tokens = number_at(turn, TURN_requested_tokens);
    set_object(&request->session, count > 6 ? PyTuple_GetItem(arguments, 6) : Py_None);
    set_object(&request->kept, count > 7 ? PyTuple_GetItem(arguments, 7) : Py_None);
    if (PyErr_Occurred()) {
        Py_DECREF(request);
        return NULL;
    }
    return (PyObject *)request;
}

static PyObject *begin(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Connection *conn;
    if (!has_arguments(count, 2) || (conn = connection_of(arguments[0])) == NULL)
        return NULL;
    set_object(&conn->request, arguments[1]);
    if (conn->state != IDLE || !is_none(conn->tls))
        Py_RETURN_NONE;
    return write_request(module, arguments[0]);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* 1: bytes have arrived; 0: there are none; -1: an exception is set. */
static int read_socket(const Connection *conn, Read *read) {
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {arrived, READ_SIZE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    do {
        read->size = recvmsg((int)conn->fd, &message, MSG_DONTWAIT);
    } while (read->size < 0 && errno == EINTR);
    if (read->size < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    read->now = now_of(CLOCK_REALTIME);
    read->stamp = 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first != NULL && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec time;
        memcpy(&time, CMSG_DATA(first), sizeof time);
        read->stamp = nanoseconds(&time);
    }
    return 1;
}

/* Like `stamped_reads.interpreted_has_unread`. */
static PyObject *has_unread(PyObject *module, PyObject *object) {
    Connection *conn = connection_of(object);
    char byte;
    if (conn == NULL)
        return NULL;
    if (!conn->is_used)
        Py_RETURN_FALSE;
    ssize_t got = recv((int)conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return PyBool_FromLong(got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK));
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

/* --- a whole response ------------------------------------------------------------------------- */

/* Of core.responses.layouts.Layout. */
typedef struct {
    int64_t status, framing, body_offset;
    const char *response;
    const char *spans;
    Py_ssize_t response_size, span_count;
} Layout;

/* Attributes of records. */
static PyObject *name_bodies, *name_fragments, *name_last_seq, *name_reads;

/* The layout of responses of this size; NULL if there is none, or with an exception set. The latest layout is cached,
 * because most responses have the same layout as the previous one. */
static const Layout *find_layout(PyObject *layouts, Py_ssize_t size) {
    static PyObject *latest;
    static Layout layout;
    PyObject *key = PyLong_FromSsize_t(size);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(layouts, key);
    Py_XDECREF(key);
    if (found == NULL)
        return NULL;
    if (found != latest) {
        Py_ssize_t spans_size = 0;
        Layout taken = {number_at(found, LAYOUT_status), number_at(found, LAYOUT_framing),
                        number_at(found, LAYOUT_body_offset), NULL, NULL, 0, 0};
        taken.response = bytes_at(found, LAYOUT_response, &taken.response_size);
        taken.spans = bytes_at(found, LAYOUT_spans, &spans_size);
        taken.span_count = spans_size / 8;
        if (PyErr_Occurred())
            return NULL;
        set_object(&latest, found);
        layout = taken;
    }
    return layout.response_size == size ? &layout : NULL;
}

static int is_laid_out(const Layout *layout) {
    for (Py_ssize_t i = 0; i < layout->span_count; i++) {
        uint32_t span[2];
        memcpy(span, layout->spans + 8 * i, 8);
        if (memcmp(arrived + span[0], layout->response + span[0], span[1] - span[0]))
            return 0;
    }
    return 1;
}

/* Whether the connection waits for the start of a response whose bytes are not kept. */
static int is_at_beginning(const Connection *conn, const Request *request) {
    return conn->state == HEAD && is_none(request->buffer) && is_none(request->kept) &&
           is_none(conn->tls) && is_none(conn->unsent);
}

/* The parts of a response. */
typedef struct {
    const void *body, *rows;
    Py_ssize_t body_size, rows_size;
} Part;

/* Like RawRecords._pack, for an incomplete response (without a number) or the last part of a completed one. */
static int pack(Request *request, PyObject *records, const Part *part, int64_t seq) {
    Fragment fragment = {
        .request_id = (uint64_t)request->request_id,
        .seq = (uint64_t)seq,
        .index = (uint64_t)request->index,
        .due_wall_ns = request->due_wall_ns,
        .write_wall_ns = request->write_wall_ns,
        .sent_wall_ns = request->sent_wall_ns,
        .ack_wall_ns = request->ack_wall_ns,
        .end_wall_ns = request->end_wall_ns,
        .connect_ns = request->connect_ns,
        .tls_ns = request->tls_ns,
        .bytes_out = (uint32_t)request->bytes_out,
        .body_offset = (uint32_t)request->body_offset,
        .reads = (uint32_t)(part->rows_size / (Py_ssize_t)sizeof(Row)),
        .body = (uint32_t)part->body_size,
        .entry = (uint32_t)request->entry,
        .input_tokens = (int32_t)request->input_tokens,
        .part = (uint16_t)request->part,
        .turn = (uint16_t)request->turn,
        .status = (uint16_t)request->status,
        .flags = (uint16_t)(seq ? request->flags | FINAL : request->flags),
        .phase = (uint8_t)request->phase,
        .outcome = (uint8_t)(seq ? COMPLETED : 0),
        .framing = (uint8_t)request->framing,
        .requested_tokens = (int32_t)request->requested_tokens,
    };
    if (add_to(records, name_fragments, &fragment, sizeof fragment) < 0 ||
        add_to(records, name_reads, part->rows, part->rows_size) < 0 ||
        add_to(records, name_bodies, part->body, part->body_size) < 0)
        return -1;
    request->part++;
    return 0;
}

typedef struct {
    PyObject *connections, *layouts, *records, *left;
    int64_t polled;
} Ready;

/* Adds an event for the caller to handle; -1 with an exception set. */
static int leave(const Ready *ready, PyObject *connection, long long kind, PyObject *what) {
    PyObject *number = PyLong_FromLongLong(kind);
    PyObject *step = number == NULL ? NULL : PyTuple_Pack(3, connection, number, what);
    int failed = step == NULL || PyList_Append(ready->left, step) < 0;
    Py_XDECREF(number);
    Py_XDECREF(step);
    return failed ? -1 : 0;
}

/* Like RawRecords.end, for a completed response. The connection becomes idle, as in Connection.become_idle; the caller
 * handles its request. */
static int record(Connection *conn, Request *request, const Ready *ready, const Part *last,
                  int64_t end) {
    PyObject *number = PyObject_GetAttr(ready->records, name_last_seq);
    int64_t seq = number == NULL ? 0 : PyLong_AsLongLong(number) + 1;
    Py_XDECREF(number);
    PyObject *next = PyErr_Occurred() ? NULL : PyLong_FromLongLong(seq);
    if (next == NULL)
        return -1;
    int failed = PyObject_SetAttr(ready->records, name_last_seq, next) < 0;
    Py_DECREF(next);
    request->end_wall_ns = end;
    if (failed || pack(request, ready->records, last, seq) < 0)
        return -1;
    set_object(&request->buffer, Py_None);
    set_object(&request->read_rows, Py_None);
    conn->state = IDLE;
    conn->is_used = 1;
    if (leave(ready, (PyObject *)conn, HAS_ENDED, (PyObject *)request) < 0)
        return -1;
    set_object(&conn->request, Py_None);
    return 0;
}

static int record_whole(Connection *conn, Request *request, const Ready *ready,
                        const Layout *layout, const Read *read) {
    Row row = row_of(read, ready->polled);
    const Part whole = {arrived, &row, read->size, sizeof row};
    request->ack_wall_ns = read->stamp;
    request->status = layout->status;
    request->framing = layout->framing;
    request->body_offset = layout->body_offset;
    return record(conn, request, ready, &whole, read->stamp);
}

/* --- in the middle of responses --------------------------------------------------------------- */

/* Offset after the complete chunks from `at` on; beyond `size` if the last one continues in a later read. Stops at a
 * line that needs the full parser: the last one, a cut one, or one with more than a size. */
static Py_ssize_t after_chunks(const char *bytes, Py_ssize_t at, Py_ssize_t size) {
    while (at < size) {
        Py_ssize_t line = at, chunk = chunk_size(bytes, &line, size);
        if (chunk <= 0 || line + 2 > size || bytes[line] != '\r' || bytes[line + 1] != '\n')
            break;
        at = line + 2 + chunk + 2;
    }
    return at;
}

static PyObject *pass_chunks(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    char *bytes;
    Py_ssize_t size;
    if (!has_arguments(count, 2) || PyBytes_AsStringAndSize(arguments[0], &bytes, &size) < 0)
        return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]);
    if (at < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "outside of the data");
        return NULL;
    }
    return PyLong_FromSsize_t(after_chunks(bytes, at, size));
}

/* Whether the connection waits for the rest of a chunk, or for the line of the next one, in a body whose bytes are not
 * kept. */
static int is_plain(const Connection *conn, const Request *request) {
    return conn->state == BODY && request->framing == CHUNKED && !conn->in_trailers &&
           is_none(request->kept) && is_none(conn->tls) && conn->line != NULL &&
           PyBytes_Check(conn->line) && PyBytes_Size(conn->line) == 0;
}

static int64_t part_bytes(const Request *request) {
    return request->part ? FRAGMENT_BYTES
                         : FRAGMENT_BYTES / FIRST_PARTS * (1 + request->request_id % FIRST_PARTS);
}

/* Appends to a buffer that may not exist yet, or may be the bytes of one read. */
static int gather(PyObject **buffer, const void *bytes, Py_ssize_t size) {
    if (is_none(*buffer) || !PyByteArray_Check(*buffer)) {
        PyObject *made = is_none(*buffer) ? PyByteArray_FromStringAndSize(NULL, 0)
                                          : PyByteArray_FromObject(*buffer);
        if (made == NULL)
            return -1;
        set_object(buffer, made);
        Py_DECREF(made);
    }
    return add(*buffer, bytes, size);
}

static int add_read(Request *request, const Read *read, int64_t polled) {
    Row row = row_of(read, polled);
    if (gather(&request->buffer, arrived, read->size) < 0 ||
        gather(&request->read_rows, &row, sizeof row) < 0)
        return -1;
    request->bytes_in += read->size;
    return 0;
}

static Part gathered(const Request *request) {
    return (Part){
        PyByteArray_AsString(request->buffer), PyByteArray_AsString(request->read_rows),
        PyByteArray_Size(request->buffer), PyByteArray_Size(request->read_rows)};
}

static int is_line_end(char c) {
    return c == '\n' || c == '\r';
}

/* Like `stamped_reads.is_done`, for the gathered bytes; the last `framing` bytes are not part of an event. */
static int is_done(const char *bytes, Py_ssize_t size, Py_ssize_t framing) {
    static const char done[] = "[DONE]", field[] = "data:";
    const Py_ssize_t done_size = sizeof done - 1, field_size = sizeof field - 1;
    Py_ssize_t stop = size - framing, at = stop;
    while (at > 0 && is_line_end(bytes[at - 1]))
        at--;
    if (at >= stop || at < done_size + field_size || memcmp(bytes + at - done_size, done, done_size))
        return 0;
    at -= done_size;
    if (bytes[at - 1] == ' ')
        at--;
    at -= field_size;
    return at >= 0 && !memcmp(bytes + at, field, field_size) &&
           (at == 0 || is_line_end(bytes[at - 1]));
}

/* Handles a read that continues a response. */
static int take_more(Connection *conn, Request *request, const Ready *ready, const Read *read) {
    if (add_read(request, read, ready->polled) < 0)
        return -1;
    int is_in_the_middle = PyByteArray_Size(request->read_rows) == FIRST_READS_BYTES;
    int is_at_done = request->flags & STREAMED &&
                     is_done(PyByteArray_AsString(request->buffer),
                             PyByteArray_Size(request->buffer), conn->left < 2 ? 2 - conn->left : 0);
    if (PyByteArray_Size(request->buffer) >= part_bytes(request)) {
        const Part part = gathered(request);
        if (pack(request, ready->records, &part, 0) < 0)
            return -1;
        set_object(&request->buffer, Py_None);
        set_object(&request->read_rows, Py_None);
    }
    if (is_in_the_middle && leave(ready, (PyObject *)conn, IN_MIDDLE, Py_None) < 0)
        return -1;
    if (!is_at_done)
        return 0;
    request->end_wall_ns = read->stamp;
    return leave(ready, (PyObject *)conn, IS_DONE, Py_None);
}

/* Whether a good response on a connection that stays open ends at `at` with nothing after it. */
static int is_end(const Connection *conn, const Request *request, Py_ssize_t at, Py_ssize_t size) {
    static const char last_chunk[] = "0\r\n\r\n";
    return size - at == sizeof last_chunk - 1 && !memcmp(arrived + at, last_chunk, size - at) &&
           request->status < 400 && conn->keep_alive && is_none(conn->unsent);
}

/* Handles a read that ends a response. */
static int take_last(Connection *conn, Request *request, const Ready *ready, const Read *read) {
    if (add_read(request, read, ready->polled) < 0)
        return -1;
    const Part last = gathered(request);
    return record(conn, request, ready, &last, read->stamp);
}

/* --- what is ready ---------------------------------------------------------------------------- */

/* Reads a connection, and adds an event if the caller has to act; -1 with an exception set. */
static int take(Connection *conn, const Ready *ready) {
    Read read;
    int got = read_socket(conn, &read);
    if (got <= 0)
        return got;
    Request *request = request_of(conn);
    if (request != NULL && read.size && read.stamp) {
        if (is_at_beginning(conn, request)) {
            const Layout *layout = find_layout(ready->layouts, read.size);
            if (layout == NULL && PyErr_Occurred())
                return -1;
            if (layout != NULL && is_laid_out(layout))
                return record_whole(conn, request, ready, layout, &read);
        } else if (is_plain(conn, request) && request->bytes_in + read.size <= MAX_RESPONSE_BYTES) {
            Py_ssize_t after = after_chunks(arrived, conn->left, read.size);
            if (after >= read.size) {
                conn->left = after - read.size;
                return take_more(conn, request, ready, &read);
            }
            if (is_end(conn, request, after, read.size))
                return take_last(conn, request, ready, &read);
        }
    }
    PyObject *back = handed_back(&read);
    int failed = back == NULL || leave(ready, (PyObject *)conn, WAS_READ, back) < 0;
    Py_XDECREF(back);
    return failed ? -1 : 0;
}

/* A socket error becomes an event for the caller. */
static int leave_error(const Ready *ready, PyObject *connection) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    int failed = error == NULL || leave(ready, connection, FAILED, error) < 0;
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return failed ? -1 : 0;
}

/* Handles one event; -1 with an exception set. */
static int take_event(PyObject *event, const Ready *ready) {
    PyObject *fd = PyTuple_GetItem(event, 0), *mask = PyTuple_GetItem(event, 1);
    PyObject *found = mask == NULL ? NULL : PyDict_GetItemWithError(ready->connections, fd);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : leave(ready, Py_None, IS_OTHER, fd);
    if (PyLong_AsLong(mask) != EPOLLIN)
        return leave(ready, found, HAS_EVENT, mask);
    Connection *conn = connection_of(found);
    if (conn == NULL)
        return -1;
    if (take(conn, ready) == 0)
        return 0;
    return PyErr_ExceptionMatches(PyExc_OSError) ? leave_error(ready, found) : -1;
}

static PyObject *take_ready(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (!has_arguments(count, 7))
        return NULL;
    PyObject *events = arguments[0];
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), stop = PyLong_AsSsize_t(arguments[2]);
    Ready ready = {
        .connections = arguments[3],
        .layouts = arguments[5],
        .records = arguments[6],
        .polled = PyLong_AsLongLong(arguments[4]),
    };
    if (PyErr_Occurred() || (ready.left = PyList_New(0)) == NULL)
        return NULL;
    if (stop > PyList_Size(events))
        stop = PyList_Size(events);
    for (; at < stop; at++) {
        PyObject *event = PyList_GetItem(events, at);
        if (event == NULL || take_event(event, &ready) < 0) {
            Py_DECREF(ready.left);
            return NULL;
        }
    }
    return ready.left;
}

/* --- the module ------------------------------------------------------------------------------- */

/* Reads a number from `constants`; -1 with an exception set. */
static int take_constant(PyObject *constants, const char *name, long long *value) {
    PyObject *found = PyDict_GetItemString(constants, name);
    if (found == NULL) {
        PyErr_Format(PyExc_ImportError, "_stamped_reads needs the constant %s: `make`", name);
        return -1;
    }
    *value = PyLong_AsLongLong(found);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *set_constants(PyObject *module, PyObject *constants) {
    if (!PyDict_Check(constants))
        return PyErr_Format(PyExc_TypeError, "constants are a dict");
#define TAKE(name) \
    if (take_constant(constants, #name, &name) < 0) \
        return NULL;
    CONSTANTS(TAKE)
    Py_RETURN_NONE;
}

/* The shared layout, which `stamped_reads` compares with its own: offset, size and signedness of each column of a row,
 * and the position of each field of a tuple. */
static PyObject *shared(void) {
#define COLUMN_FORMAT(type, name) "s(nii)"
#define READ_COLUMN(type, name) \
    , #name, (Py_ssize_t)offsetof(Row, name), (int)sizeof(type), (type)-1 < (type)1
#define FRAGMENT_COLUMN(type, name) \
    , #name, (Py_ssize_t)offsetof(Fragment, name), (int)sizeof(type), (type)-1 < (type)1
#define ITEM_FORMAT(prefix, name) "si"
#define ITEM_PLACE(prefix, name) , #name, prefix##name
    return Py_BuildValue(
        "{s{" READ_COLUMNS(COLUMN_FORMAT) "}s{" FRAGMENT_COLUMNS(COLUMN_FORMAT) "}"
        "s{" PREPARED_TURN_ITEMS(ITEM_FORMAT) "}s{" LAYOUT_ITEMS(ITEM_FORMAT) "}}",
        "READ" READ_COLUMNS(READ_COLUMN), "FRAGMENT" FRAGMENT_COLUMNS(FRAGMENT_COLUMN),
        "PreparedTurn" PREPARED_TURN_ITEMS(ITEM_PLACE), "Layout" LAYOUT_ITEMS(ITEM_PLACE));
}

#define FAST(function) {#function, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}
static PyMethodDef functions[] = {
    FAST(begin),
    FAST(pass_chunks),
    FAST(take_ready),
    {"has_unread", has_unread, METH_O, NULL},
    {"write_request", write_request, METH_O, NULL},
    {"set_constants", set_constants, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot request_slots[] = {{Py_tp_new, make_request},
                                      {Py_tp_members, request_members},
                                      {Py_tp_dealloc, free_request},
                                      {0, NULL}};
static PyType_Slot connection_slots[] = {
    {Py_tp_members, connection_members}, {Py_tp_dealloc, free_connection}, {0, NULL}};

#define NAMED(name) "aiperf_svc.adapters.inference._stamped_reads." #name
static PyType_Spec request_spec = {NAMED(RequestFields), sizeof(Request), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, request_slots};
static PyType_Spec connection_spec = {NAMED(ConnectionFields), sizeof(Connection), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, connection_slots};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stamped_reads", NULL, -1, functions, NULL, NULL, NULL, NULL};

/* The new type, which lives as long as the module; NULL with an exception set. */
static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    return type == NULL || PyModule_AddType(module, type) < 0 ? NULL : type;
}

PyMODINIT_FUNC PyInit__stamped_reads(void) {
    if ((name_bodies = PyUnicode_InternFromString("bodies")) == NULL ||
        (name_fragments = PyUnicode_InternFromString("fragments")) == NULL ||
        (name_last_seq = PyUnicode_InternFromString("last_seq")) == NULL ||
        (name_reads = PyUnicode_InternFromString("reads")) == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&definition), *layouts;
    if (module == NULL || (request_type = add_type(module, &request_spec)) == NULL ||
        (connection_type = add_type(module, &connection_spec)) == NULL ||
        (layouts = shared()) == NULL) {
        Py_XDECREF(module);
        return NULL;
    }
    if (PyModule_AddObjectRef(module, "SHARED", layouts) < 0)
        Py_CLEAR(module);
    Py_DECREF(layouts);
    return module;
}
